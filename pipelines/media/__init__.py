"""Media files to samples and pixels, by libraries that hostile files can crash: in processes of their own."""

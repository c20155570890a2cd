"""What a prompt shows beside its text: images, encoded in steps of their own before their sequences are scheduled."""

"""What models see with: pictures to rows that stand in a prompt where tokens' embeddings would. Free of torch and
transformers until the first picture comes."""

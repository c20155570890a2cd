"""Whisper, in CTranslate2's form."""

"""Lossless sparse weight sync: diff, patch, apply and verify model states bit for bit."""

"""Trained runs for use elsewhere: an ONNX file, a folder in the layout of the Hugging Face Hub."""

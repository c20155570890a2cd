"""Text and image encoders, by ONNX Runtime and OpenVINO."""

"""Sessions of OpenVINO on the CPU."""

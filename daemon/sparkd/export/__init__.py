"""What sparkd tells: metrics, log lines and the status document, all made of frozen values."""

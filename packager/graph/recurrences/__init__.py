"""Operators of recurrences: layers of LSTM, GRU and RNN cells, and linear scans."""

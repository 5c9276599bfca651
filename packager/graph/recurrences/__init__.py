"""Operators of recurrences: layers of LSTM, GRU and RNN cells, linear scans, and forward substitutions."""

"""Reading, sampling and splitting of data sets."""

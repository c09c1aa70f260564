//! Reading a record file.

//! The safe verbs API.

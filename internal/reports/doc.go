// Package reports holds public reports of activation checkpointing gone wrong as tests: for each, a tiny
// model, and the answer that is right. They run compiled programs, not the interpreter. A report that can't
// arise here has a test that shows why.
package reports

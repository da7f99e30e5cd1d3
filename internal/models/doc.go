// Package models holds tests of the builtin models that are made after those of public reports
// (Qwen2.5 in bf16, Llama 4, Mixtral), and of state: everything that they compute is the same at every
// budget, on any number of threads and instruction set, and equal to the interpreter.
package models

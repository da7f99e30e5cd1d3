// Package once holds tests of what happens exactly once, on compiled programs (docs/pinning.md):
// decisions, foreign kernels and their effects, state under gradient accumulation, collectives, and
// random bits, which are never kept.
package once

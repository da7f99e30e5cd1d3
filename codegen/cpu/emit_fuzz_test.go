package cpu

import (
	"math/rand/v2"
	"testing"

	"reprise/codegen/internal/samples"
)

// TestRandomKernelsEqualInterpreter grows kernels of all statement forms and types.
func TestRandomKernelsEqualInterpreter(t *testing.T) {
	n := uint64(60)
	if emitLong() {
		n = 1500
	}
	r := rand.New(rand.NewPCG(9, 9))
	var cases []emitCase
	for seed := range n {
		cases = append(cases, emitCaseOf(samples.Grow(seed), r))
		if len(cases) == 150 || seed == n-1 {
			emitDifferential(t, cases)
			cases = nil
		}
	}
}

package compile_test

import (
	"testing"

	"reprise/internal/testprog"
)

// TestEqualsInterpreter: every result of the compiled program, at the smallest budget, has the bits that the
// ops' reference semantics give: parameters, optimizer state, buffers and the loss, and logits in inference.
func TestEqualsInterpreter(t *testing.T) {
	for _, spec := range small() {
		for _, train := range []bool{true, false} {
			t.Run(name(spec)+map[bool]string{true: "/train", false: "/infer"}[train], func(t *testing.T) {
				t.Parallel()
				m := testprog.Load(t, spec, train)
				o := smallest()
				if !train {
					o.Target = "cpu:x86-64-v4"
				}
				lab.Compile(t, m, o).EqualsInterpreter(t, 2, 2)
			})
		}
	}
}

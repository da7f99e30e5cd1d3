package compile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/ir"
	"reprise/ir/interp"
	"reprise/ir/tensor"
	"reprise/runtime"
)

// TestEqualsInterpreter: every result of the compiled program, at the smallest budget, has the bits that the
// ops' reference semantics give: parameters, optimizer state, buffers and the loss, and logits in inference.
func TestEqualsInterpreter(t *testing.T) {
	for _, spec := range small() {
		for _, train := range []bool{true, false} {
			t.Run(name(spec)+map[bool]string{true: "/train", false: "/infer"}[train], func(t *testing.T) {
				t.Parallel()
				m := load(t, spec, train)
				opt := compile.Options{Budget: compile.Budget{Min: true}}
				lib, _ := library(t, m, opt)
				ref, err := compile.Reference(m.Module)
				require.NoError(t, err)
				i, err := runtime.Load(lib, runtime.Options{Seed: 3, Threads: 2})
				require.NoError(t, err)
				defer i.Close()
				state := map[string]*tensor.Tensor{}
				if init := ref.Func("init"); init != nil {
					state, err = interp.RunNamed(init, map[string]*tensor.Tensor{"key": tensor.Key(3, 0xFFFFFFFF, 0)}, interp.Options{})
					require.NoError(t, err)
				}
				step := ref.Func("step")
				for s := range 2 {
					in := map[string]*tensor.Tensor{}
					for _, p := range step.Body.Params {
						switch p.Role() {
						case ir.RoleKey:
							in[p.Name] = tensor.Key(3, uint32(s), 0)
						case ir.RoleStep:
							x := tensor.New(p.Type.DType, p.Type.Shape...)
							x.SetBits(0, uint64(s))
							in[p.Name] = x
						case ir.RoleInput:
							x, err := compile.SyntheticInput(p, 7, s)
							require.NoError(t, err)
							require.NoError(t, i.Bind(p.Name, x.Data))
							in[p.Name] = x
						default:
							in[p.Name] = state[p.Name]
						}
					}
					want, err := interp.RunNamed(step, in, interp.Options{})
					require.NoError(t, err)
					require.NoError(t, i.Step())
					for _, r := range step.Results {
						got, err := i.Read(r)
						require.NoError(t, err)
						require.Equal(t, want[r].Data, got, "%s in step %d", r, s)
						if p := step.Param(r); p != nil && p.IsState() {
							state[r] = want[r]
						}
					}
				}
			})
		}
	}
}

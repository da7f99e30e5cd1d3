package group

import (
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/ops"
)

// TestColumnsShareASweep: reductions over the same rows become one unit where one reads what the other reads anyway, and
// not where one waits for the other, where each has a full-size value of its own, or where they are over other dimensions.
func TestColumnsShareASweep(t *testing.T) {
	for _, c := range []struct {
		name, body string
		units      int // that hold a reduction
	}{
		{"scale and shift", `
  %p = mul %x, %y : f32[256,64] loc(n)
  %a = reduce %p {axes=[0], kind="sum"} : f32[64] loc(n)
  %b = reduce %y {axes=[0], kind="sum"} : f32[64] loc(n)`, 1},
		{"one waits for the other", `
  %a = reduce %y {axes=[0], kind="sum"} : f32[64] loc(n)
  %m = broadcast %a {dims=[1], shape=[256,64]} : f32[256,64] loc(n)
  %z = sub %y, %m : f32[256,64] loc(n)
  %b = reduce %z {axes=[0], kind="sum"} : f32[64] loc(n)`, 2},
		{"each with something of its own", `
  %p = mul %x, %y : f32[256,64] loc(n)
  %q = mul %w, %y : f32[256,64] loc(n)
  %a = reduce %p {axes=[0], kind="sum"} : f32[64] loc(n)
  %b = reduce %q {axes=[0], kind="sum"} : f32[64] loc(n)`, 2},
		{"nothing shared", `
  %a = reduce %x {axes=[0], kind="sum"} : f32[64] loc(n)
  %b = reduce %y {axes=[0], kind="sum"} : f32[64] loc(n)`, 2},
		{"other dimensions", `
  %a = reduce %y {axes=[0], kind="sum"} : f32[64] loc(n)
  %b = reduce %y {axes=[1], kind="sum"} : f32[256] loc(n)`, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := ir.Parse(ops.Table(), c.name, `module "columns"
func @step(%x: f32[256,64], %y: f32[256,64], %w: f32[256,64]) -> (a, b) {`+c.body+`
  return %a, %b
}
`)
			require.NoError(t, err)
			require.NoError(t, Run(m, ops.Table()))
			require.NoError(t, ir.Verify(m))
			units := 0
			for _, op := range m.Func("step").Body.Ops {
				has := op.Name() == "reduce"
				for _, r := range op.Regions {
					r.Walk(func(o *ir.Op) { has = has || o.Name() == "reduce" })
				}
				if has {
					units++
				}
			}
			require.Equal(t, c.units, units)
		})
	}
}

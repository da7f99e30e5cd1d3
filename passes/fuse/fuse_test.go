package fuse

import (
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/ops"
)

const activated = `module "activated"
func @step(%x: f32[64,32], %w: f32[2048,1]) -> (y) {
  %a = tanh %x : f32[64,32] loc(act)
  %r = reshape %a {shape=[1,2048]} : f32[1,2048] loc(act)
  %y = contract %r, %w {lhs_contract=[1], rhs_contract=[0]} : f32[1,1] loc(fc)
  return %y
}
`

// TestMarkedViewStays: a name or a pin of another shape of a value holds the value in memory, as one of itself does.
func TestMarkedViewStays(t *testing.T) {
	for _, mark := range []string{"", "%a name", "%r name", "%r pin"} {
		m, err := ir.Parse(ops.Table(), "activated", activated)
		require.NoError(t, err)
		f := m.Func("step")
		for _, op := range f.Body.Ops {
			v := op.Results[0]
			switch mark {
			case "%" + v.Name + " name":
				v.Attrs = v.Attrs.Set("name", "kept")
			case "%" + v.Name + " pin":
				v.Attrs = v.Attrs.Set("pin", true)
			}
		}
		want := 0
		if mark == "" {
			want = 1
		}
		require.Len(t, Sites(f), want, mark)
	}
}

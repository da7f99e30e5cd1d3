package reports

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
)

// told has three layers, each of which tells the world something on its way; with used, its result is read.
func told(t testing.TB, used bool) *frontendModel {
	t.Helper()
	name := "told"
	if used {
		name = "toldused"
	}
	return trained(t, name, func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := l.Gelu(l.Linear("fc", x, 64, nn.NoBias()))
			still := l.Op("stop_gradient", []*nn.Tensor{h})
			y := foreign(l.In("sink"), nn.Foreign{Symbol: "tell", Determinism: "exact", Effect: "host", CostNs: 10}, still, h.Type)
			if used {
				h = l.Add(h, l.Scale(y, 0.1))
			}
			x = l.Add(x, l.Linear("out", h, 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
}

// sinks are the layers of the ops with an effect, in the order of the program.
func (o *outcome) sinks() []string {
	var out []string
	for _, op := range o.p.Step.Func("step").Body.Ops {
		if op.Effect() == ir.EffectHost {
			out = append(out, op.Loc.Layer)
		}
	}
	return out
}

// TestP042: selective checkpointing could replay an op whose side effects have an order (pytorch/pytorch#196956). They
// happen once, in the order of the program, and a rule that wants them again is an error.
func TestP042(t *testing.T) {
	calls := counter(t, "told_calls")
	want := []string{"layers.0.sink", "layers.1.sink", "layers.2.sink"}
	m := told(t, true)
	all := run(t, m, setup{})
	for _, s := range []setup{smallest(), under(t, "full")} {
		o := run(t, m, s)
		same(t, all.steps, o.steps)
		assert.Equal(t, want, o.sinks())
		require.NotEmpty(t, o.clones())
		before := calls()
		o.again(setup{steps: 4})
		assert.Equal(t, 4*3, calls()-before)
	}
	_, err := tryPlan(m, under(t, "", "must recompute layer=layers.1.sink").Options)
	e := diag.As(err)
	require.NotNil(t, e)
	assert.Equal(t, "foreign", e.Op)
	assert.Equal(t, "layers.1.sink", e.Layer)
	assert.Contains(t, e.Message, "effect")
	assert.NotEmpty(t, e.Hint)
}

// TestP043: a host callback inside remat was called twice, was an error, or vanished, over the versions (jax-ml/jax#8907). It is
// called once a step, also where nothing reads what it gives.
func TestP043(t *testing.T) {
	calls := counter(t, "told_calls")
	for _, used := range []bool{true, false} {
		m := told(t, used)
		for _, s := range []setup{{}, smallest(), under(t, "full")} {
			o := run(t, m, s)
			before := calls()
			o.again(setup{steps: 2})
			assert.Equal(t, 2*3, calls()-before, "used %v, budget %v", used, s.Budget)
			assert.Len(t, slices.Compact(o.sinks()), 3)
		}
	}
}

package reports

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
)

// ab has a layer with a value named A, one named B, and others that have no name, all of which backward reads.
func ab(t testing.TB) *frontendModel {
	t.Helper()
	return trained(t, "ab", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			sin := func(x *nn.Tensor) *nn.Tensor { return l.Op("sin", []*nn.Tensor{x}) }
			a := nn.Name(l.Linear("a", x, 64, nn.NoBias()), "A")
			b := nn.Name(l.Linear("b", sin(a), 64, nn.NoBias()), "B")
			c := l.Linear("c", sin(b), 64, nn.NoBias()) // no name
			x = l.Add(x, l.Linear("out", sin(c), 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
}

// TestP058: "save anything but these names" was a stub that saved everything (jax-ml/jax#37888). A truth table: the named
// policies by a value named A, one named B, one without a name.
func TestP058(t *testing.T) {
	m := ab(t)
	all := run(t, m, setup{})
	for _, c := range []struct {
		policy  string
		a, b, c bool // kept
	}{
		{"everything_saveable", true, true, true},
		{"nothing_saveable", false, false, false},
		{"dots_saveable", true, true, true},
		{"save_only_these_names:A", true, false, false},
		{"save_only_these_names:A,B", true, true, false},
		{"save_any_names_but_these:A", false, true, false},
		{"save_anything_except_these_names:A", false, true, true},
		{"save_anything_except_these_names:A,B", false, false, true},
	} {
		o := &outcome{t: t, m: m, p: planned(t, m, under(t, c.policy).Options)}
		kept := map[string]bool{}
		for _, v := range o.saved() {
			for _, name := range []string{"a", "b", "c"} {
				kept[name] = kept[name] || v.Op.Loc.Layer == "layers.0."+name
			}
		}
		assert.Equal(t, []bool{c.a, c.b, c.c}, []bool{kept["a"], kept["b"], kept["c"]}, "%s: A, B, unnamed; %v", c.policy, o.savedIn("layers.0"))
	}
	o := run(t, m, under(t, "save_anything_except_these_names:A"))
	same(t, all.steps, o.steps)
	for _, l := range o.layersAgain() {
		assert.False(t, strings.HasSuffix(l, ".b") || strings.HasSuffix(l, ".out"), l)
	}
}

// TestP060: the list of saved values did not show a name where what was saved is the input of the op that names
// (jax-ml/jax#20285). A name is an attribute of the value, and there is no such op.
func TestP060(t *testing.T) {
	m := trained(t, "named", func(s *nn.Scope) *nn.Tensor {
		a := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		a = s.Linear("in", a, 32, nn.NoBias())
		x2 := s.Mul(a, a)
		foo := nn.Name(x2, "foo")
		require.True(t, foo == x2, "naming makes another value")
		return meanSquare(s, s.Linear("out", s.Op("sin", []*nn.Tensor{foo}), 32, nn.NoBias()))
	})
	m.Module.Func("step").Body.Walk(func(op *ir.Op) { assert.NotContains(t, op.Name(), "name") })
	o := run(t, m, under(t, "", "must save op=mul"))
	shown := ""
	for _, v := range o.p.Values {
		if strings.HasSuffix(v.Name, ":foo") || v.Name == "foo" {
			shown = v.Name + " " + v.Fate
		}
	}
	assert.Contains(t, shown, "foo")
	assert.Contains(t, shown, compile.FateSaved)
}

// TestP065: marks by op are hard to get right; what is marked for correctness must stay whatever is chosen for speed
// (pytorch/torchtitan#4402). A pin of the model holds against every policy and budget; a policy's unknown region is an
// error.
func TestP065(t *testing.T) {
	m := trained(t, "pins", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := nn.Pin(l.Gelu(l.Linear("fc", x, 64, nn.NoBias())))
			x = l.Add(x, l.Linear("out", l.Tanh(h), 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	all := run(t, m, setup{})
	for _, s := range []setup{smallest(), under(t, "full"), under(t, "memory_budget:0"), under(t, "", "must recompute layer=layers.*"), under(t, "", "budget layer=layers.* 48KiB")} {
		o := run(t, m, s)
		same(t, all.steps, o.steps)
		pins := 0
		for _, op := range o.p.Step.Func("step").Body.Ops {
			for _, r := range op.Results {
				if r.Attrs.Bool("pin") {
					pins++
					assert.Nil(t, op.Remat, "the pinned value of %s is computed again", op.Loc)
				}
			}
		}
		assert.Equal(t, 3, pins)
	}
	// A bound below the pinned values, which all have to stay where all else is computed again, is an error.
	_, err := tryPlan(m, under(t, "", "budget layer=layers.* 0B").Options)
	assert.ErrorContains(t, err, "0 bytes can't be met: what no policy may give up there takes 49152: layers.0")
	for _, line := range []string{"must recompute layer=regions.attention", "budget layer=encoder 1KiB", "allow-recompute layer=nosuch"} {
		_, err := tryPlan(m, under(t, "", line).Options)
		e := diag.As(err)
		require.NotNil(t, e, line)
		assert.Equal(t, "policy", e.Code)
	}
}

// TestP057: a kernel that its users had written was recomputed because nothing was known of its cost (pytorch/pytorch#163139).
// Without a declared cost it is kept and listed; with one the planner weighs it.
func TestP057(t *testing.T) {
	build := func(cost int64) *frontendModel {
		return trained(t, "cost", func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
			for i := range 4 {
				l := s.Inf("layers.%d", i)
				h := l.Linear("fc", x, 64, nn.NoBias())
				f := nn.Foreign{Symbol: "twice", Determinism: "exact", VJP: "twice_vjp", CostNs: cost}
				h = foreign(l.In("kernel"), f, h, h.Type)
				x = l.Add(x, l.Linear("out", l.Tanh(h), 32, nn.NoBias()))
			}
			return meanSquare(s, x)
		})
	}
	again := func(m *frontendModel, percent float64) (n int, p *compile.Program) {
		p = planned(t, m, compile.Options{Budget: compile.Budget{Percent: percent}})
		for _, op := range p.Step.Func("step").Body.Ops {
			if op.Name() == "foreign" && op.Remat != nil && !backward(op) {
				n++
			}
		}
		return n, p
	}
	n, p := again(build(0), 90)
	assert.Zero(t, n, "of unknown cost, and run again")
	assert.NotEmpty(t, p.Report.NoCostModel)
	assert.Contains(t, strings.Join(p.Report.Warnings, "\n"), "no cost model")
	cheap, p := again(build(1), 80)
	assert.Empty(t, p.Report.NoCostModel)
	dear, _ := again(build(1_000_000_000), 80)
	assert.Greater(t, cheap, dear)
	assert.Zero(t, dear)
	exact(t, build(1))
}

package reports

import (
	"context"
	"fmt"
	"slices"
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

// TestP007: a checkpointed region moved the generator on further than the plain one, so that all behind it drew other
// numbers (pytorch/pytorch#14253). Only the first of two dropouts is recomputed: nothing else changes.
func TestP007(t *testing.T) {
	m := trained(t, "twodrops", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			x = l.Dropout(l.Tanh(l.Linear("fc", x, 64)), 0.5)
			s.Output(fmt.Sprintf("y%d", i), x)
		}
		return meanSquare(s, s.Linear("out", s.Tanh(x), 32))
	})
	all := run(t, m, setup{steps: 3})
	o := run(t, m, setup{Options: under(t, "", "must recompute layer=layers.0").Options, steps: 3})
	same(t, all.steps, o.steps) // masks of the second layer and of later steps among it
	for _, l := range o.layersAgain() {
		assert.True(t, strings.HasPrefix(l, "layers.0"), l)
	}
}

// TestP012: fused attention without dropout could not be recomputed, since the op carries a mark of randomness for when it
// has some (pytorch/pytorch#187985). Determinism is a function of op and attributes.
func TestP012(t *testing.T) {
	build := func(p float64, foreign bool) *frontendModel {
		return trained(t, fmt.Sprintf("attention%v%v", p, foreign), func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{2, 16, 32}, nn.Normal01)
			for i := range 3 {
				l := s.Inf("layers.%d", i)
				part := func(name string) *nn.Tensor { return l.Project(name, x, 2, 16, nn.NoBias()) }
				y := l.In("attn").Attention(part("q"), part("k"), part("v"), nn.DropProbs(p))
				if foreign {
					y = noisy(l.In("atomic"), y, "tol")
				}
				x = l.Add(x, l.Join("proj", y, 32, nn.NoBias()))
			}
			return meanSquare(s, x)
		})
	}
	for _, p := range []float64{0, 0.1} {
		m := build(p, false)
		_, least := exact(t, m)
		assert.Zero(t, least.p.Report.Pinned, "p = %v", p)
		o := run(t, m, under(t, "", "must recompute op=attention"))
		same(t, least.steps, o.steps)
		assert.Equal(t, 6, o.runs("attention", ""), "p = %v: each runs again", p)
	}
	least := planned(t, build(0.1, true), compile.Options{Budget: compile.Budget{Min: true}})
	assert.Equal(t, 6, least.Report.Pinned, "the kernel and its derivative, three times")
	for _, v := range least.Values {
		if v.Fate == compile.FatePinned {
			assert.Contains(t, v.Reason, "order of arithmetic is not fixed", "the report says why")
			assert.Contains(t, v.Layer, "atomic")
		}
	}
}

// TestP048: a list of ops copied from a tutorial matched nothing, and everything was recomputed in silence
// (pytorch/pytorch#176065). A rule that matches nothing is an error with what there is instead; each says what it matched.
func TestP048(t *testing.T) {
	m := mlp(t, 4, 32, 64, 0.5)
	for _, rule := range []string{"must save op=matmull", "must save op=contrat", "must recompute layer=layers.99.*", "must save value=nosuch", "prefer save layer=layers.1 op=top_k"} {
		s := under(t, "", rule)
		_, err := tryPlan(m, s.Options)
		e := diag.As(err)
		require.NotNil(t, e, rule)
		assert.Equal(t, "policy", e.Code, rule)
		assert.Contains(t, e.Error(), strings.Fields(rule)[2])
		assert.NotEmpty(t, e.Hint, rule)
		s.AllowUnmatched = true
		p := planned(t, m, s.Options)
		assert.NotEmpty(t, p.Report.Policy.Warnings, rule)
		require.Len(t, p.Report.Policy.Rules, 1)
		assert.Zero(t, p.Report.Policy.Rules[0].Matched)
	}
	p := planned(t, m, under(t, "", "must save op=contract", "must recompute layer=layers.*.fc1").Options)
	assert.Equal(t, []int{8, 4}, []int{p.Report.Policy.Rules[0].Matched, p.Report.Policy.Rules[1].Matched})
}

// TestP051: a policy that keeps every second matrix product counted the router's small one too, so that another of the big
// ones was kept (pytorch/torchtitan#1372). Rules know layers, not shapes or turns.
func TestP051(t *testing.T) {
	build := func(extra bool) *frontendModel {
		return trained(t, fmt.Sprintf("gate%v", extra), func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{64, 64}, nn.Normal01)
			for i := range 2 {
				l := s.Inf("layers.%d", i)
				h := l.Tanh(l.Linear("big", x, 64, nn.NoBias()))
				g := l.Softmax(l.Linear("router.gate", h, 4, nn.NoBias()))
				u := l.Sigmoid(l.Linear("other", h, 4, nn.NoBias())) // the gate's shape
				x = l.Add(h, l.Linear("mix", l.Mul(g, u), 64, nn.NoBias()))
				if extra {
					x = l.Add(x, l.Linear("back", l.Tanh(l.Linear("small", h, 4, nn.NoBias())), 64, nn.NoBias()))
				}
			}
			return meanSquare(s, x)
		})
	}
	m := build(false)
	all := run(t, m, setup{})
	o := run(t, m, under(t, "", "must recompute layer=layers.*.router.gate"))
	same(t, all.steps, o.steps)
	for _, l := range o.layersAgain() {
		assert.NotContains(t, l, "other")
		assert.NotContains(t, l, "mix")
	}
	rule := o.p.Report.Policy.Rules[0]
	require.Positive(t, rule.Matched)
	for _, name := range rule.First {
		assert.Contains(t, name, "router.gate")
	}
	// With one more small product the decisions about the others stay.
	more := run(t, build(true), under(t, "", "must recompute layer=layers.*.router.gate"))
	for _, prefix := range []string{"layers.0.big", "layers.1.big", "layers.0.other", "layers.1.other", "layers.0.router", "layers.1.router"} {
		assert.Equal(t, o.savedIn(prefix), more.savedIn(prefix), prefix)
	}
}

// TestP052: people asked to keep the router's output rather than recompute it, which worked for matrix products only, and not
// when all else is recomputed (pytorch/torchtitan#1589). Each rule alone, by op, layer or name, keeps just what it names.
func TestP052(t *testing.T) {
	m := moe(t, 2, 128, 4, 2, 16)
	all := run(t, m, setup{})
	full := run(t, m, under(t, "full"))
	same(t, all.steps, full.steps)
	// more is what a rule keeps beside what is kept without it; nothing that was kept is given up for it.
	more := func(m *frontendModel, rule string) []string {
		t.Helper()
		saved := (&outcome{t: t, m: m, p: planned(t, m, under(t, "full", rule).Options)}).savedIn("")
		for _, v := range (&outcome{t: t, m: m, p: planned(t, m, under(t, "full").Options)}).savedIn("") {
			k := slices.Index(saved, v)
			if assert.GreaterOrEqual(t, k, 0, "%s: %s is no longer kept", rule, v) {
				saved = slices.Delete(saved, k, k+1)
			}
		}
		return saved
	}
	scores := []string{"layers.0.moe.router:contract+logistic", "layers.1.moe.router:contract+logistic"}
	assert.Equal(t, scores, more(m, "must save op=logistic"))
	assert.Equal(t, scores, more(m, "must save op=contract layer=layers.*.router"))
	assert.Equal(t, scores[1:], more(m, "must save layer=layers.1.moe.router"))
	assert.Equal(t, []string{"layers.0.moe.experts:grouped_contract"}, more(m, "must save op=grouped_contract layer=layers.0"))
	assert.Empty(t, more(m, "must save op=top_k"), "a decision is kept anyway")
	soft := trained(t, "softrouter", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 16}, nn.Normal01)
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			h := nn.Name(l.Linear("fc", x, 16, nn.NoBias()), "hidden")
			p := l.In("router").Softmax(l.In("router").Linear("gate", h, 16, nn.NoBias()))
			x = l.Add(x, l.Linear("out", l.Mul(p, l.Tanh(h)), 16, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	assert.Equal(t, []string{"layers.0.fc:contract", "layers.1.fc:contract"}, more(soft, "must save value=hidden"))
	assert.Equal(t, []string{"layers.0.router.gate:contract"}, more(soft, "must save op=contract layer=layers.0.router.gate"))
	softmax := more(soft, "must save op=softmax") // a unit that ends with the product that reads it
	for _, v := range softmax {
		assert.Contains(t, v, ":reduce+mul")
	}
	assert.Len(t, softmax, 2*3)
	kept := run(t, m, under(t, "full", "must save op=grouped_contract"))
	same(t, all.steps, kept.steps)
	assert.Equal(t, 2+2, kept.runs("grouped_contract", "")-gradContracts(kept), "each once forward, none again")
}

// gradContracts counts the grouped contractions of the derivative.
func gradContracts(o *outcome) int {
	n := 0
	o.each(func(op *ir.Op) {
		if op.Name() == "grouped_contract" && backward(op) {
			n++
		}
	})
	return n - 2
}

// TestP053: checkpointing was all or nothing; people ask for every n-th layer, by its place in the list of layers and not by
// a counter of calls (huggingface/transformers#48200).
func TestP053(t *testing.T) {
	m := mlp(t, 12, 16, 64, 0)
	all := run(t, m, setup{})
	o := run(t, m, under(t, "every:3"))
	same(t, all.steps, o.steps)
	layers := func(o *outcome) []string {
		var out []string
		for _, l := range o.layersAgain() {
			w := strings.Split(l, ".")
			if w[0] == "layers" && !slices.Contains(out, w[1]) {
				out = append(out, w[1])
			}
		}
		slices.Sort(out)
		return out
	}
	for _, l := range layers(o) {
		assert.Contains(t, []string{"0", "3", "6", "9"}, l)
	}
	assert.Len(t, layers(o), 4)
	again := &outcome{t: t, m: m, p: planned(t, m, under(t, "every:3").Options)}
	assert.Equal(t, o.layersAgain(), again.layersAgain(), "a second compilation chooses others")
	full := planned(t, m, under(t, "full").Options)
	assert.Less(t, o.p.Report.ArenaBytes, all.p.Report.ArenaBytes)
	assert.Greater(t, o.p.Report.ArenaBytes, full.Report.ArenaBytes)
	assert.InDelta(t, float64(full.Report.Recomputed)/3, float64(o.p.Report.Recomputed), 2)
}

// TestP054: people asked to checkpoint only those layers that need gradients (huggingface/transformers#19340). A frozen
// prefix has nothing to keep and nothing to recompute, also at budgets.
func TestP054(t *testing.T) {
	build := func(frozen, layers int) *frontendModel {
		return trained(t, fmt.Sprintf("frozen%d", frozen), func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
			for i := range frozen + layers {
				l := s.Inf("layers.%d", i)
				weight := func(name string, in, out int64) *nn.Tensor {
					if i < frozen {
						return l.Frozen(name, []int64{in, out}, nn.Normal(0.2))
					}
					return l.Param(name, []int64{in, out}, nn.Normal(0.2))
				}
				x = l.Add(x, l.MatMul(l.Gelu(l.MatMul(x, weight("w1", 32, 64))), weight("w2", 64, 32)))
			}
			return meanSquare(s, x)
		})
	}
	m := build(3, 3)
	all, least := exact(t, m)
	full := run(t, m, under(t, "full"))
	same(t, all.steps, full.steps)
	require.NotEmpty(t, full.clones())
	none := func(o *outcome) {
		t.Helper()
		for i := range 3 {
			prefix := fmt.Sprintf("layers.%d", i)
			for _, c := range o.clones() {
				assert.False(t, strings.HasPrefix(c.Loc.Layer, prefix), "%s is recomputed", c.Loc)
			}
			for _, v := range o.savedIn(prefix) {
				assert.True(t, i == 2, "%s is kept", v) // the border is an input of layer 3
			}
		}
	}
	none(all)
	none(full)
	plain := planned(t, build(0, 3), compile.Options{})
	assert.LessOrEqual(t, frameBytes(all.p), frameBytes(plain)+128*32*4, "more than one border")
	plain = planned(t, build(0, 3), under(t, "full").Options)
	assert.LessOrEqual(t, frameBytes(full.p), frameBytes(plain)+128*32*4)
	// At the least that the model without the prefix can do with, and one border, the prefix has nothing to do with
	// the budget. Below that the border itself has to go, and is made from the prefix again: only then.
	plain = planned(t, build(0, 3), smallest().Options)
	o := run(t, m, atBudget(all.p.Report.ArenaBytes-frameBytes(all.p)+frameBytes(plain)+128*32*4))
	same(t, all.steps, o.steps)
	require.NotEmpty(t, o.clones())
	none(o)
	if slices.ContainsFunc(least.layersAgain(), func(l string) bool { return l < "layers.3" }) {
		assert.Less(t, frameBytes(least.p), frameBytes(plain)+128*32*4, "the prefix is run again for nothing")
	}
}

// TestP079: recomputing attention freed nothing, since the next op kept attention's output for its weight's gradient
// (NVIDIA/Megatron-LM#7237). The output is what is recomputed, whoever reads it; a rule that frees nothing says what keeps
// its values.
func TestP079(t *testing.T) {
	m := att(t, 3, 2, 16, 32, 0.1)
	all := run(t, m, setup{})
	o := run(t, m, under(t, "", "must recompute layer=layers.*.attn"))
	same(t, all.steps, o.steps)
	assert.Empty(t, slices.DeleteFunc(o.savedIn("layers."), func(v string) bool { return !strings.Contains(v, ".attn") }))
	rule := o.p.Report.Policy.Rules[0]
	assert.Positive(t, rule.FreedBytes)
	assert.Less(t, o.savedBytes(), all.savedBytes())

	held := planned(t, moe(t, 2, 128, 4, 2, 16), under(t, "", "must recompute op=top_k").Options)
	rule = held.Report.Policy.Rules[0]
	assert.Zero(t, rule.FreedBytes)
	require.NotEmpty(t, rule.Notes)
	assert.Contains(t, rule.Notes[0], "pinned")
}

// TestP089: checkpointing had no effect on memory and no message said so (huggingface/transformers#28022). Every report has
// the planned peak, that of keeping everything, and what is recomputed; a policy that leads to nothing is a warning.
func TestP089(t *testing.T) {
	p := planned(t, mlp(t, 4, 32, 64, 0.5), under(t, "full").Options)
	r := p.Report
	assert.Positive(t, r.PromisedPeakBytes)
	assert.Less(t, r.PromisedPeakBytes, r.SaveAllPeakBytes)
	assert.Positive(t, r.Recomputed)
	assert.Positive(t, r.RecomputeNs)
	assert.Equal(t, r.CostNs-r.BaseCostNs, r.RecomputeNs)
	assert.Empty(t, r.Policy.Warnings)
	p = planned(t, mlp(t, 4, 32, 64, 0.5), under(t, "", "must recompute layer=loss").Options)
	assert.Zero(t, p.Report.Recomputed)
	assert.NotEmpty(t, p.Report.Policy.Warnings, "nothing is recomputed under a policy, and nothing says so")
}

// TestP090: a budget could only be a share of activations; people asked for curves and for solvers (pytorch/pytorch#126320).
// Bytes, shares, what fits this machine, and the least: each point of the curve, compiled by itself, is just what the curve says.
func TestP090(t *testing.T) {
	for text, want := range map[string]compile.Budget{"512MiB": {Bytes: 512 << 20}, "1.5GB": {Bytes: 1_500_000_000}, "60%": {Percent: 60}, "min": {Min: true}} {
		got, err := compile.ParseBudget(text)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	m := mlp(t, 4, 32, 64, 0.5)
	fit, err := compile.ParseBudget("fit")
	require.NoError(t, err)
	assert.Positive(t, fit.Bytes)
	o := run(t, m, setup{Options: compile.Options{Budget: fit}})
	assert.Zero(t, o.p.Report.Recomputed, "all of it fits")
	c, err := compile.Pareto(context.Background(), m, compile.Options{PlanSteps: planSteps}, 5)
	require.NoError(t, err)
	require.Len(t, c.Points, 5)
	for _, point := range c.Points {
		p := planned(t, m, compile.Options{Budget: compile.Budget{Bytes: point.BudgetBytes}})
		assert.Equal(t, point.ArenaBytes, p.Report.ArenaBytes, "at %d", point.BudgetBytes)
		assert.Equal(t, point.CostNs, p.Report.CostNs, "at %d", point.BudgetBytes)
	}
	o = run(t, m, atBudget(c.Points[2].BudgetBytes))
	assert.Equal(t, c.Points[2].ArenaBytes, o.p.Report.ArenaBytes)
}

// TestP124: rules by size or by layer were for layers only, and bare ops made them crash (keras-team/keras#23107). The same
// rules decide about an op inside a layer and outside of all.
func TestP124(t *testing.T) {
	build := func() *frontendModel {
		return trained(t, "bare", func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
			h := s.In("layers.0").MatMul(x, s.In("layers.0").Param("w", []int64{32, 64}, nn.Normal(0.2)))
			a := s.In("layers.0").Tanh(h)
			w := s.Param("w", []int64{64, 64}, nn.Normal(0.2))
			b := s.Tanh(s.MatMul(a, w)) // outside of all layers
			return meanSquare(s, s.Linear("out", b, 16, nn.NoBias()))
		})
	}
	m := build()
	all := run(t, m, setup{})
	for _, rule := range []string{"must recompute min_bytes=32000", "must recompute op=tanh"} {
		o := run(t, m, under(t, "", rule))
		same(t, all.steps, o.steps)
		for _, v := range o.saved() {
			if strings.Contains(rule, "bytes") {
				assert.Less(t, v.Type.Bytes(), int64(32000), "%s of %s is kept", v.Type, v.Op.Loc)
			}
		}
		for _, prefix := range []string{"layers.0", "bare"} {
			assert.True(t, slices.ContainsFunc(o.layersAgain(), func(l string) bool { return strings.HasPrefix(l, prefix) }), "%s: %s in %v", rule, prefix, o.layersAgain())
		}
	}
}

// TestP092: a request: choose by measured time and memory, not by rules of thumb (pytorch/pytorch#140410). The same graph with
// the costs of two candidates swapped gives the other plan; what the table lacks is listed, and the plan has its hash.
func TestP092(t *testing.T) {
	m := trained(t, "candidates", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
		sin := func(s *nn.Scope, x *nn.Tensor) *nn.Tensor { return s.Op("sin", []*nn.Tensor{x}) }
		a := s.In("a").Linear("fc", x, 64, nn.NoBias())
		b := s.In("b").Linear("fc", x, 64, nn.NoBias())
		ya := s.In("a").Linear("out", sin(s.In("a"), a), 8, nn.NoBias())
		yb := s.In("b").Linear("out", sin(s.In("b"), b), 8, nn.NoBias())
		mid := s.In("mid") // where most is in memory, and either a or b may be missing
		return meanSquare(s, mid.Linear("out", sin(mid, mid.Linear("fc", s.Add(ya, yb), 256, nn.NoBias())), 256, nn.NoBias()))
	})
	all := run(t, m, setup{})
	ids := map[string]int{}
	for _, op := range all.p.Ops {
		if strings.HasSuffix(op.Op, ".fc:contract") {
			ids[op.Layer] = op.ID
		}
	}
	require.Len(t, ids, 3)
	choose := func(na, nb int64) *compile.Program {
		text := fmt.Sprintf(`{"format":"reprise.costs/1","ops":[{"id":%d,"op":"a.fc:contract","ns":%d},{"id":%d,"ns":%d}]}`, ids["a.fc"], na, ids["b.fc"], nb)
		table, err := compile.ReadCosts("costs.json", []byte(text))
		require.NoError(t, err)
		return planned(t, m, compile.Options{Costs: table, Budget: compile.Budget{Bytes: all.p.Report.ArenaBytes - 16384}})
	}
	again := func(p *compile.Program) []string {
		var out []string
		for _, c := range (&outcome{t: t, p: p}).clones() {
			if strings.HasSuffix(c.Loc.Layer, ".fc") && c.Loc.Layer != "mid.fc" {
				out = append(out, c.Loc.Layer)
			}
		}
		return out
	}
	ab, ba := choose(1_000, 9_000_000), choose(9_000_000, 1_000)
	assert.Equal(t, []string{"a.fc"}, again(ab))
	assert.Equal(t, []string{"b.fc"}, again(ba))
	require.NotNil(t, ab.Report.Costs)
	assert.Equal(t, 2, ab.Report.Costs.Given)
	assert.NotEmpty(t, ab.Report.Costs.Missing)
	assert.NotContains(t, ab.Report.Costs.Missing, "a.fc:contract")
	assert.Contains(t, strings.Join(ab.Report.Warnings, "\n"), "lacks")
	assert.Len(t, ab.Report.Costs.SHA256, 64)
	assert.NotEqual(t, ab.Report.Costs.SHA256, ba.Report.Costs.SHA256)
	plan, err := ab.PlanJSON()
	require.NoError(t, err)
	assert.Contains(t, plan, ab.Report.Costs.SHA256)

	// A table of another model is refused, with what does not fit; so is one that can't be read.
	table, err := compile.ReadCosts("costs.json", []byte(fmt.Sprintf(`{"format":"reprise.costs/1","ops":[{"id":%d,"op":"layers.7:contract","ns":1}]}`, ids["a.fc"])))
	require.NoError(t, err)
	_, err = tryPlan(m, compile.Options{Costs: table})
	e := diag.As(err)
	require.NotNil(t, e)
	assert.Equal(t, []string{"costs", "a.fc", "costs.json"}, []string{e.Code, e.Layer, e.File})
	for _, text := range []string{"", "{}", `{"format":"reprise.costs/1","ops":[{"id":0,"ns":-1}]}`, `{"format":"reprise.costs/1","ops":[{"id":0,"ns":1},{"id":0,"ns":2}]}`, `{"format":"reprise.costs/1","opps":[]}`} {
		_, err := compile.ReadCosts("costs.json", []byte(text))
		require.Error(t, err, text)
		assert.NotEmpty(t, diag.As(err).Hint)
	}
}

package policy_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/passes"
	"reprise/passes/lower"
	"reprise/passes/policy"
	"reprise/passes/remat"
	"reprise/planner"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// flat costs: an op takes as long as its results have bytes, a contraction ten times as long.
type flat struct{}

func (flat) Nanoseconds(op *ir.Op, _ *lower.Lowered) int64 {
	var n int64
	for _, r := range op.Results {
		n += r.Type.Bytes()
	}
	if strings.Contains(remat.Kind(op), "contract") {
		n *= 10
	}
	return n
}

func (flat) Workspace(*ir.Op, *lower.Lowered) int64 { return 0 }

// problem is the planning problem of a module.
func problem(t testing.TB, m *ir.Module, p *policy.Policy) *remat.Problem {
	t.Helper()
	m = m.Clone()
	if m.Attrs.Str("test") == "" {
		require.NoError(t, passes.Run(m, ops.Table(), passes.Options{}))
	}
	pr, err := remat.Build(m.Func("step"), flat{}, remat.Options{AllowRecompute: p.MayRecompute})
	require.NoError(t, err)
	return pr
}

// grouped is m after the passes, so that problem need not run them.
func grouped(t testing.TB, m *ir.Module) *ir.Module {
	t.Helper()
	m = m.Clone()
	require.NoError(t, passes.Run(m, ops.Table(), passes.Options{}))
	m.Attrs = m.Attrs.Set("test", "grouped")
	return m
}

func builtin(t testing.TB, spec string) *ir.Module {
	t.Helper()
	m, err := frontend.Load(spec, frontend.Options{Train: true})
	require.NoError(t, err)
	return m.Module
}

func load(t testing.TB, name string, rules ...string) *policy.Policy {
	t.Helper()
	p, err := policy.Load(name)
	require.NoError(t, err)
	p, err = p.With(rules...)
	require.NoError(t, err)
	return p
}

// blocks is a model of n blocks over x [16,32], whose values have names: of a block h (a product), a (its
// activation), b (a product of a), y (the block's result, the next one's input). Each has an unnamed product too.
func blocks(t testing.TB, n int) *ir.Module {
	t.Helper()
	mod, err := nn.Train(nn.Model{Name: "blocks", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{16, 32}, nn.Normal01)
		x = nn.Name(s.In("embed").Tanh(x), "e")
		for i := range n {
			l := s.Inf("layers.%d", i)
			h := nn.Name(l.Linear("fc", x, 64), "h")
			a := nn.Name(l.Tanh(h), "a")
			b := nn.Name(l.Linear("proj", a, 32), "b")
			u := l.Tanh(l.Linear("extra", b, 32)) // unnamed
			x = nn.Name(l.Add(x, l.Mul(u, u)), "y")
		}
		z := s.In("head").Linear("out", x, 4)
		return s.In("loss").MSE(z, s.Input("t", dtype.F32, []int64{16, 4}, nn.Normal01))
	}}, nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
	require.NoError(t, err)
	return mod
}

// fates applies p without a budget and gives each forward value that p decides about its fate: layer and name
// of the value, or layer and op of a nameless one.
func fates(t testing.TB, m *ir.Module, p *policy.Policy) map[string]string {
	t.Helper()
	pr := problem(t, m, p)
	_, err := p.Apply(pr, policy.Options{Alone: true, HostMemory: true})
	require.NoError(t, err)
	out := map[string]string{}
	for i, v := range pr.Values {
		if v.Op == nil || pr.Problem.Values[i].Policy == planner.PolicyNone {
			continue
		}
		key := label(v)
		for n := 2; out[key] != ""; n++ {
			key = fmt.Sprintf("%s#%d", label(v), n)
		}
		out[key] = pr.Problem.Values[i].Policy.String()
	}
	return out
}

func label(v *ir.Value) string {
	layer := v.Op.Loc.Layer
	if v.Op.Name() == "fused" {
		layer = v.Op.Regions[0].Results[v.Index].Op.Loc.Layer
	}
	if n := policy.ValueName(v); n != "" {
		return layer + " " + n
	}
	return layer + " (" + remat.Kind(v.Op) + ")"
}

// recomputed lists by block what must be recomputed: h, a, b and y by their names, p the unnamed product with
// its activation, u what is made of that.
func recomputed(f map[string]string, n int) []string {
	out := make([]string, n)
	for i := range n {
		l := fmt.Sprintf("layers.%d", i)
		for _, c := range [][2]string{{"h", l + ".fc h"}, {"a", l + " a"}, {"b", l + ".proj b"}, {"p", l + " (contract+tanh)"}, {"u", l + " (mul)"}, {"y", l + " y"}} {
			if f[c[1]] == "must-recompute" {
				out[i] += c[0]
			}
		}
	}
	return out
}

// TestTruthTables: what each named policy recomputes in a block of four, in words of the originals. The
// result y of a block is the next block's input, which every checkpoint keeps; the last one's is the head's.
func TestTruthTables(t *testing.T) {
	m := grouped(t, blocks(t, 4))
	all := func(s string) []string { return []string{s, s, s, s} }
	for _, c := range []struct {
		policy string
		want   []string
	}{
		{"none", all("")},
		{"everything_saveable", all("")},
		{"full", all("habpu")},
		{"nothing_saveable", all("habpu")},
		{"dots_saveable", all("au")},
		{"checkpoint_dots", all("au")},
		{"dots_with_no_batch_dims_saveable", all("au")},
		{"save_only_these_names:a", all("hbpu")},
		{"save_only_these_names:a,h", all("bpu")},
		{"save_any_names_but_these:a", all("apu")},
		{"save_anything_except_these_names:a", all("a")},
		{"save_anything_except_these_names:a,b", all("ab")},
		{"save_from_both_policies:save_only_these_names:a,save_only_these_names:b", all("hpu")},
		{"selective:op", all("abu")}, // h is the first product, b the second, p the third
		{"selective:op=tanh", all("hbu")},
		{"selective:2", []string{"", "habpu", "", "habpu"}},
		{"must_recompute:tanh", all("ap")},
		{"prefer_recompute:tanh", all("ap")},
		{"uniform:1", all("habpu")},
		{"uniform:2", []string{"habpuy", "habpu", "habpuy", "habpu"}},
		{"block:1", []string{"habpu", "", "", ""}},
		{"every:3", []string{"habpu", "", "", "habpu"}},
		{"every:2+1", []string{"", "habpu", "", "habpu"}},
	} {
		require.Equal(t, c.want, recomputed(fates(t, m, load(t, c.policy)), 4), c.policy)
	}
	saved := fates(t, m, load(t, "must_save:tanh"))
	require.Equal(t, "must-save", saved["layers.1 a"])
	require.Equal(t, "must-recompute", saved["layers.1.fc h"], "what is not listed is recomputed where there is no budget")
	moved := fates(t, m, load(t, "save_and_offload_only_these_names:a;h"))
	require.Equal(t, "must-offload", moved["layers.2.fc h"])
	require.Empty(t, moved["layers.2 a"])
	require.Equal(t, "must-recompute", moved["layers.2.proj b"])
	moved = fates(t, m, load(t, "offload_dot_with_no_batch_dims"))
	require.Equal(t, "must-offload", moved["layers.2.fc h"])
	require.Equal(t, "must-recompute", moved["layers.2 a"])
	// Outside of layers nothing is touched by policies about layers.
	require.NotContains(t, fates(t, m, load(t, "full")), "embed e")
}

// TestWithBudget: with a budget a preference stays one, and what a policy merely allows to keep is open.
func TestWithBudget(t *testing.T) {
	m := blocks(t, 2)
	p := load(t, "must_save:tanh", "prefer save value=b")
	pr := problem(t, m, p)
	_, err := p.Apply(pr, policy.Options{})
	require.NoError(t, err)
	got := map[string]string{}
	for i, v := range pr.Values {
		if v.Op != nil && policy.ValueName(v) != "" {
			got[label(v)] = pr.Problem.Values[i].Policy.String()
		}
	}
	require.Equal(t, "must-save", got["layers.0 a"])
	require.Equal(t, "prefer-save", got["layers.0.proj b"])
	require.Equal(t, "prefer-recompute", got["layers.0.fc h"])
	require.Equal(t, "none", got["layers.0 y"])
}

// TestPrecedence: rules come before named policies, must before prefer, later before earlier.
func TestPrecedence(t *testing.T) {
	m := blocks(t, 2)
	for _, c := range []struct {
		rules []string
		want  string
	}{
		{[]string{"use full"}, "must-recompute"},
		{[]string{"prefer save value=a", "use full"}, ""},
		{[]string{"must recompute value=a", "must save value=a"}, "must-save"},
		{[]string{"must save value=a", "must recompute value=a"}, "must-recompute"},
		{[]string{"must save value=a", "prefer recompute value=a"}, "must-save"},
		{[]string{"use full", "use save_only_these_names:a"}, "must-recompute"}, // the second has nothing to say about a
	} {
		f := fates(t, m, load(t, "", c.rules...))
		require.Equal(t, c.want, f["layers.0 a"], "%q", c.rules)
	}
}

// TestP051Identity: a rule about a router's product touches neither an equal one elsewhere nor, by turns, the
// products around it.
func TestP051Identity(t *testing.T) {
	build := func(router bool) *ir.Module {
		mod, err := nn.Train(nn.Model{Name: "mms", Loss: func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{16, 64}, nn.Normal01)
			for i := range 2 {
				l := s.Inf("layers.%d", i)
				big := nn.Name(l.Linear("big", x, 64), "big")
				other := nn.Name(l.Linear("other", big, 4), "other")
				if router {
					gate := nn.Name(l.In("router").Linear("gate", big, 4), "gate")
					other = l.Add(other, l.Tanh(gate))
				}
				x = nn.Name(l.Add(big, l.Linear("up", l.Tanh(other), 64)), "y")
			}
			return s.In("loss").MSE(x, s.Input("t", dtype.F32, []int64{16, 64}, nn.Normal01))
		}}, nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
		require.NoError(t, err)
		return mod
	}
	f := fates(t, build(true), load(t, "", "must recompute layer=layers.*.router.gate"))
	for i := range 2 {
		require.Equal(t, "must-recompute", f[fmt.Sprintf("layers.%d.router.gate gate", i)])
		require.NotContains(t, f, fmt.Sprintf("layers.%d.other other", i))
	}
	require.Len(t, f, 2)
	// A named list by turns of products: rules take part in what they name, and nothing else moves.
	with := fates(t, build(true), load(t, "every:2", "must recompute layer=layers.*.router.gate"))
	without := fates(t, build(false), load(t, "every:2"))
	for _, key := range []string{"layers.0.big big", "layers.0.other other", "layers.1.big big", "layers.1.other other"} {
		require.Equal(t, without[key], with[key], key)
	}
}

// TestP052ForceSave: in a region that is recomputed whole, a rule that forces one thing to be saved (by kind of op, by
// layer, by name; top-k, sigmoid, softmax, product) keeps exactly that.
func TestP052ForceSave(t *testing.T) {
	mod, err := nn.Train(nn.Model{Name: "router", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{16, 32}, nn.Normal01)
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			r := l.In("router")
			logits := nn.Name(r.Linear("gate", x, 8), "logits")
			probs := nn.Name(r.Softmax(logits), "probs")
			gate := nn.Name(r.In("gate2").Op("logistic", []*nn.Tensor{logits}), "sig")
			h := nn.Name(l.Tanh(l.Linear("fc", x, 8)), "h")
			u := nn.Name(l.Mul(l.Mul(h, probs), gate), "u")
			x = nn.Name(l.Add(x, l.Linear("out", u, 32)), "y")
		}
		return s.In("loss").MSE(x, s.Input("t", dtype.F32, []int64{16, 32}, nn.Normal01))
	}}, nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
	require.NoError(t, err)
	kept := func(rules ...string) map[string]bool {
		p := load(t, "full", rules...)
		pr := problem(t, mod, p)
		_, err := p.Apply(pr, policy.Options{Alone: true})
		require.NoError(t, err)
		plan, err := planner.Obey(pr.Problem)
		require.NoError(t, err)
		_, err = planner.Check(pr.Problem, plan, -1)
		require.NoError(t, err)
		runs := map[int]int{}
		for _, i := range plan.Order {
			runs[i]++
		}
		out := map[string]bool{}
		for i, op := range pr.Ops {
			for _, v := range op.Results {
				if n := policy.ValueName(v); n != "" && pr.Forward[i] && runs[i] == 1 && n != "y" {
					out[label(v)] = true
				}
			}
		}
		return out
	}
	require.Empty(t, kept())
	for rule, want := range map[string]string{
		"must save op=softmax layer=layers.1":            "layers.1.router probs",
		"must save op=logistic layer=layers.1":           "layers.1.router.gate2 sig",
		"must save op=contract layer=layers.1.router":    "layers.1.router.gate logits",
		"must save value=probs layer=layers.1":           "layers.1.router probs",
		"must save value=h layer=layers.0":               "layers.0 h",
		"must save layer=layers.0.router.gate":           "layers.0.router.gate logits",
		"must save layer=layers.*.gate2 every=2":         "layers.0.router.gate2 sig",
		"must save value=sig every=2+1":                  "layers.1.router.gate2 sig",
		"must save op=tanh min_bytes=512 layer=layers.0": "layers.0 h",
	} {
		require.Equal(t, map[string]bool{want: true}, kept(rule), rule)
	}
}

// TestP053Positions: positions count in each list of layers by itself, whatever the indices and the order of
// compilation.
func TestP053Positions(t *testing.T) {
	build := func() *ir.Module {
		mod, err := nn.Train(nn.Model{Name: "lists", Loss: func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{16, 16}, nn.Normal01)
			for _, list := range []string{"encoder.layers", "decoder.layers"} {
				for i := range 5 {
					l := s.Inf("%s.%d", list, 2*i+1) // 1, 3, 5, 7, 9: positions 0 … 4
					x = nn.Name(l.Tanh(nn.Name(l.Linear("fc", x, 16), "h")), "y")
				}
			}
			return s.In("loss").MSE(x, s.Input("t", dtype.F32, []int64{16, 16}, nn.Normal01))
		}}, nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
		require.NoError(t, err)
		return mod
	}
	for range 2 {
		f := fates(t, build(), load(t, "", "must recompute value=h every=3"))
		require.Equal(t, map[string]string{
			"encoder.layers.1.fc h": "must-recompute", "encoder.layers.7.fc h": "must-recompute",
			"decoder.layers.1.fc h": "must-recompute", "decoder.layers.7.fc h": "must-recompute"}, f)
	}
	f := fates(t, build(), load(t, "", "must recompute value=h layer=decoder.* every=2+1"))
	require.Equal(t, map[string]string{"decoder.layers.3.fc h": "must-recompute", "decoder.layers.7.fc h": "must-recompute"}, f)
}

// TestP124OutsideOfLayers: a rule about kinds or sizes decides the same for an op inside and outside of a layer.
func TestP124OutsideOfLayers(t *testing.T) {
	m := blocks(t, 1)
	f := fates(t, m, load(t, "", "must recompute op=tanh"))
	require.Equal(t, "must-recompute", f["embed e"])
	require.Equal(t, "must-recompute", f["layers.0 a"])
	f = fates(t, m, load(t, "", "must recompute min_bytes=4KiB value=?"))
	require.Equal(t, "must-recompute", f["layers.0.fc h"], "16×64×4 = 4096 bytes")
	require.NotContains(t, f, "embed e", "2048 bytes")
	f = fates(t, m, load(t, "", "must recompute min_bytes=2048"))
	require.Equal(t, "must-recompute", f["embed e"])
}

// TestPinnedWins: what decides is kept under every policy, and the report says who keeps it; opting out
// hands the layer to the pinned closure and warns with its name.
func TestPinnedWins(t *testing.T) {
	m := builtin(t, "builtin:moe,layers=2,d=32,heads=2,seq=16,batch=2,vocab=30,hidden=16,experts=4")
	p := load(t, "full", "must recompute op=top_k")
	pr := problem(t, m, p)
	rep, err := p.Apply(pr, policy.Options{Alone: true})
	require.NoError(t, err)
	for i := range pr.Ops {
		for _, v := range pr.Problem.Ops[i].Outputs {
			require.False(t, pr.Problem.Ops[i].RunsOnce() && pr.Problem.Values[v].Policy == planner.MustRecompute, pr.Problem.Ops[i].Name)
		}
	}
	plan, err := planner.Obey(pr.Problem)
	require.NoError(t, err)
	rep = rep.Finished(pr, policy.OutcomeOf(pr, plan))
	text := rep.String()
	require.Contains(t, text, "--rule:1: must recompute op=top_k: 4 matched")
	require.Contains(t, text, "4 of its values stay in memory: it is pinned: it decides")

	p = load(t, "", "allow-recompute layer=layers.1.moe", "must recompute op=top_k layer=layers.1.*")
	require.True(t, p.MayRecompute("layers.1.moe.router"))
	require.False(t, p.MayRecompute("layers.0.moe.router"))
	require.False(t, p.MayRecompute("layers.1.attn"))
	pr = problem(t, m, p)
	rep, err = p.Apply(pr, policy.Options{Alone: true})
	require.NoError(t, err)
	require.Contains(t, rep.String(), "--rule:1: allow-recompute layer=layers.1.moe: ")
	require.Contains(t, pr.AllowedLayers(), "layers.1.moe.router")
	for _, l := range pr.AllowedLayers() {
		require.True(t, strings.HasPrefix(l, "layers.1.moe"), l)
	}
	n := 0
	for i := range pr.Values {
		if pr.Problem.Values[i].Policy == planner.MustRecompute {
			n++
		}
	}
	require.Equal(t, 2, n, "values and indices of layer 1's top_k")
}

// TestP065Pin: the model's pin holds against every policy, without one, and at the smallest budget; a name that no
// value has is an error.
func TestP065Pin(t *testing.T) {
	mod, err := nn.Train(nn.Model{Name: "pinned", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{16, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := nn.Pin(nn.Name(l.Tanh(l.Linear("fc", x, 32)), "h"))
			x = nn.Name(l.Add(x, l.Tanh(h)), "y")
		}
		return s.In("loss").MSE(x, s.Input("t", dtype.F32, []int64{16, 32}, nn.Normal01))
	}}, nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
	require.NoError(t, err)
	for _, name := range []string{"", "full", "memory_budget:0"} {
		p := load(t, name, "must recompute layer=layers.*")
		pr := problem(t, mod, p)
		_, err := p.Apply(pr, policy.Options{})
		require.NoError(t, err)
		least, err := planner.MinBudget(t.Context(), pr.Problem)
		require.NoError(t, err)
		pins := 0
		runs := map[int]int{}
		for _, i := range least.Order {
			runs[i]++
		}
		for i, op := range pr.Ops {
			for _, v := range op.Results {
				if v.Attrs.Bool("pin") {
					pins++
					require.Equal(t, 1, runs[i])
				}
			}
		}
		require.Equal(t, 3, pins)
	}
	p := load(t, "", "must save value=hh")
	_, err = p.Apply(problem(t, mod, p), policy.Options{})
	require.EqualError(t, err, "--rule:1: rule \"must save value=hh\" matches nothing: no value \"hh\"\n  hint: did you mean h?")
}

// TestErrors: what can't be understood or matches nothing is refused with file, line and a way out.
func TestErrors(t *testing.T) {
	m := grouped(t, builtin(t, "builtin:moe,layers=3,d=32,heads=2,seq=16,batch=2,vocab=30,hidden=16,experts=4"))
	for _, c := range []struct{ line, want string }{
		{"must", "p:2: must what? save, recompute or offload must follow"},
		{"must sava op=x", "p:2: must is followed by save, recompute or offload, not \"sava\"\n  hint: did you mean save?"},
		{"most save op=x", "p:2: a line starts with must, prefer, use, budget or allow-recompute, not \"most\"\n  hint: did you mean must?"},
		{"full", "p:2: a line starts with must, prefer, use, budget or allow-recompute, not \"full\"\n  hint: write: use full"},
		{"must save layr=x", "p:2: no key \"layr\"\n  hint: did you mean layer=? Keys: layer, value, op, min_bytes, every"},
		{"must save op", "p:2: \"op\" is not KEY=VALUE\n  hint: keys: layer, value, op, min_bytes, every"},
		{"must save op=a op=b", "p:2: op is given twice\n  hint: write two rules"},
		{"must save every=0", "p:2: every=0: want K or K+OFFSET with K at least 1"},
		{"must save every=2+2", "p:2: every=2+2: the offset is 0 … K-1"},
		{"must save min_bytes=lots", "p:2: min_bytes=lots: \"lots\" is no number of bytes\n  hint: write 4096, 64KiB or 1.5MB"},
		{"use", "p:2: use takes one name"},
		{"use fulll", "p:2: no named policy \"fulll\"\n  hint: did you mean full?"},
		{"use full:3", "p:2: it takes no parameters, \"3\" was given"},
		{"use uniform", "p:2: it takes a whole number of layers, at least 1, not \"\""},
		{"use memory_budget:2", "p:2: it takes a fraction from 0 to 1, not \"2\""},
		{"use selective:core_atn", "p:2: selective: \"core_atn\" is neither op, a number of layers, nor one of the modules core_attn,"},
		{"use save_and_offload_only_these_names:a;a", "p:2: \"a\" is in both lists"},
		{"use save_from_both_policies:full", "p:2: it takes two policies, separated by a comma, not \"full\""},
		{"budget layer=x", "p:2: budget needs layer=PATTERN and a number of bytes"},
		{"budget layer=x 1.5", "p:2: budget: \"1.5\" is no whole number of bytes"},
		{"budget layer=x 1 2", "p:2: budget: a second number of bytes, \"2\""},
		{"must save min_bytes=0.5B", "p:2: min_bytes=0.5B: \"0.5B\" is no whole number of bytes"},
		{"budget layer=x many", "p:2: budget: \"many\" is no number of bytes"},
		{"allow-recompute", "p:2: allow-recompute needs the layers by name"},
		{"allow-recompute op=x", "p:2: allow-recompute: \"op=x\" is not layer=PATTERN"},

		{"must save op=matmull", "p:2: rule \"must save op=matmull\" matches nothing: no op \"matmull\"\n  hint: did you mean contract? That is what matmull is here"},
		{"must save op=aten.mm.default", "did you mean contract?"},
		{"must save op=top_kk", "did you mean top_k?"},
		{"must save op=conv", "there is such an op, but the model's forward part has none; it has "},
		{"must save op=attention_grad", "attention_grad is only in the backward part, which keeps nothing"},
		{"must save layer=layers.99.*", "p:2: rule \"must save layer=layers.99.*\" matches nothing: no layer \"layers.99.*\"\n  hint: layers has 3 elements, 0 to 2"},
		{"must save layer=layers.*.roter", "did you mean layers.*.router or "},
		{"must save layer=layers.*.router op=attention", "no value has all of it: layer=layers.*.router matches "},
		{"must save layer=layers.0 every=2", "no list of layers for every=2\n  hint: positions count in a list below what layer= names; lists of layers: layers (3)"},
		{"must save min_bytes=1GiB", "no value has 1073741824 bytes\n  hint: the largest value of the forward part has "},
		{"must save value=wte.w", "wte.w is a param: it is in memory from start to end"},
		{"must save value=foo", "the model names no values: nn.Name gives a value a name"},
		{"use save_only_these_names:foo", "p:2: save_only_these_names:foo: the model has no value \"foo\""},
		{"use must_save:topk", "p:2: must_save:topk: the model has no op \"topk\"\n  hint: did you mean top_k?"},
		{"use selective:shared_experts", "the model has no module \"shared_experts\"\n  hint: modules that the model has: core_attn, layernorm, moe, moe_act"},
		{"budget layer=layer.* 1MiB", "no layer matches \"layer.*\"\n  hint: did you mean layers.*"},
		{"allow-recompute layer=layers.*.rooter", "no layer matches \"layers.*.rooter\"\n  hint: did you mean layers.*.router"},
		{"must offload op=attention", "p:2: layer layers.0.attn: layers.0.attn %"},
		{"budget layer=layers.*.router 10B", "p:2: 10 bytes can't be met: what no policy may give up there takes "},
	} {
		p, err := policy.Parse("p", []byte("# a comment\n"+c.line+" # and another\n"))
		if err == nil {
			_, err = p.Apply(problem(t, m, p), policy.Options{Alone: true})
		}
		require.Error(t, err, c.line)
		require.Contains(t, err.Error(), c.want, c.line)
		d := diag.As(err)
		require.Contains(t, []string{"policy", "offload"}, d.Code)
		require.Equal(t, "p", d.File)
		require.Equal(t, 2, d.Line)
	}
	p := load(t, "", "must save op=matmull", "use save_only_these_names:foo")
	rep, err := p.Apply(problem(t, m, p), policy.Options{AllowUnmatched: true})
	require.NoError(t, err)
	require.Len(t, rep.Warnings, 2)
	require.Contains(t, rep.Warnings[0], "--rule:1: rule \"must save op=matmull\" matches nothing")
	_, err = policy.Load("dots_savable")
	require.EqualError(t, err, "dots_savable: no named policy, and no file that can be read: no such file or directory\n  hint: did you mean dots_saveable? Otherwise give a file of rules")
	_, err = load(t, "").With("must save op=x\nmust save op=y")
	require.ErrorContains(t, err, "a rule is one line")
	// A model without lists of layers has nothing that uniform could cut.
	flat := blocks(t, 0)
	p = load(t, "uniform:2")
	_, err = p.Apply(problem(t, flat, p), policy.Options{})
	require.EqualError(t, err, "--policy:1: uniform:2 matches nothing: the model has no list of layers (layers.0, layers.1, …)")
}

// TestBudgets: a budget of a region bounds what of it is kept across to the backward part, and the
// dearest per byte are what is kept; memory_budget does so for the whole program.
func TestBudgets(t *testing.T) {
	m := blocks(t, 3)
	kept := func(p *policy.Policy, in func(v *ir.Value) bool) (int64, *policy.Report) {
		pr := problem(t, m, p)
		rep, err := p.Apply(pr, policy.Options{Alone: true})
		require.NoError(t, err)
		plan, err := planner.Obey(pr.Problem)
		require.NoError(t, err)
		rep = rep.Finished(pr, policy.OutcomeOf(pr, plan))
		var n int64
		for i, yes := range planner.KeptAcross(pr.Problem, plan.Order) {
			if v := pr.Values[i]; yes && v.Op != nil && !pr.Problem.Values[i].Output && in(v) {
				n += pr.Problem.Values[i].Bytes
			}
		}
		return n, rep
	}
	middle := func(v *ir.Value) bool { return strings.HasPrefix(label(v), "layers.1") }
	all, _ := kept(load(t, "none"), middle)
	require.EqualValues(t, 4096+4*2048, all, "a, b, p, u and y")
	for _, b := range []int64{0, 2048, 4096, 6000, 8192, 12000, all} {
		got, rep := kept(load(t, "", fmt.Sprintf("budget layer=layers.1 %d", b)), middle)
		require.LessOrEqual(t, got, b)
		require.Equal(t, got, rep.Rules[0].KeptBytes, "%d", b)
		require.GreaterOrEqual(t, got, b/2-2048, "it uses what it is given")
	}
	// a costs nothing to keep where h need not be kept for computing it again; b, a product, fits beside it.
	var names []string
	_, rep := kept(load(t, "", "budget layer=layers.1 6144"), func(v *ir.Value) bool {
		if middle(v) {
			names = append(names, label(v))
		}
		return false
	})
	require.Equal(t, []string{"layers.1 a", "layers.1.proj b"}, names)
	require.EqualValues(t, 6144, rep.Rules[0].KeptBytes)
	require.EqualValues(t, 6144, *rep.Rules[0].AllowedBytes)
	require.EqualValues(t, 3*2048, rep.Rules[0].FreedBytes)
	require.Contains(t, rep.String(), "6144 of 6144 bytes kept")
	every := func(*ir.Value) bool { return true }
	whole, _ := kept(load(t, "none"), every)
	last := int64(-1)
	for _, share := range []string{"0", "0.25", "0.5", "1"} {
		got, _ := kept(load(t, "memory_budget:"+share), every)
		var x float64
		fmt.Sscan(share, &x)
		require.LessOrEqual(t, float64(got), x*float64(whole))
		require.GreaterOrEqual(t, got, last)
		last = got
	}
	require.Equal(t, whole, last)
}

// TestReports: golden reports, with counts, first names, bytes freed and kept, and notes.
func TestReports(t *testing.T) {
	moe := builtin(t, "builtin:moe,layers=2,d=32,heads=2,seq=16,batch=2,vocab=30,hidden=16,experts=4")
	for _, c := range []struct {
		name string
		m    *ir.Module
		p    *policy.Policy
	}{
		{"full", moe, load(t, "full")},
		{"router", moe, load(t, "full", "must save op=top_k layer=layers.*.router", "must save op=softmax layer=layers.*.router", "prefer save op=attention")},
		{"nothing_to_free", moe, load(t, "", "must recompute layer=loss", "must recompute op=top_k")},
		{"nothing", moe, load(t, "none")},
		{"mixed", blocks(t, 4), load(t, "every:2", "must save value=a", "must recompute op=tanh min_bytes=4KiB", "budget layer=layers.3 8KiB")},
	} {
		pr := problem(t, c.m, c.p)
		rep, err := c.p.Apply(pr, policy.Options{Alone: true})
		require.NoError(t, err)
		plan, err := planner.Obey(pr.Problem)
		require.NoError(t, err)
		rep = rep.Finished(pr, policy.OutcomeOf(pr, plan))
		golden(t, c.name+".txt", rep.String()+strings.Join(rep.Warnings, "\n"))
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o777))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o666))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "run with -update and read the diff")
}

// TestInference: a program without a backward part is left alone, whatever the policy says.
func TestInference(t *testing.T) {
	m, err := frontend.Load("builtin:gpt,layers=1,d=32,heads=2,seq=16,batch=2", frontend.Options{})
	require.NoError(t, err)
	p := load(t, "full", "must save op=no_such_op")
	pr := problem(t, m.Module, p)
	rep, err := p.Apply(pr, policy.Options{Alone: true})
	require.NoError(t, err)
	require.False(t, rep.Active())
	require.Contains(t, rep.Warnings[0], "no backward part")
	for i := range pr.Values {
		require.Equal(t, planner.PolicyNone, pr.Problem.Values[i].Policy)
	}
}

// TestDocs: docs/exactness.md has a row for every named policy and every module.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/exactness.md")
	require.NoError(t, err)
	for _, n := range policy.All() {
		require.Contains(t, string(text), "| `"+strings.ReplaceAll(n.Usage(), "|", "\\|")+"` | "+n.From+" | "+n.Meaning+" |", n.Name)
	}
	for _, m := range policy.Modules() {
		require.Contains(t, string(text), "`"+m.Name+"`")
	}
}

// TestImmutable: With leaves its receiver as it was, and applying a policy twice, to two problems, gives the same.
func TestImmutable(t *testing.T) {
	p := load(t, "full")
	_, err := p.With("must save value=a")
	require.NoError(t, err)
	require.Len(t, p.Lines(), 1)
	m := blocks(t, 2)
	require.Equal(t, fates(t, m, p), fates(t, m, p))
}

// FuzzParse: no text makes the reader panic, and what it accepts it accepts again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"must save op=top_k layer=layers.*.router\nuse selective:2", "budget layer=a 1MiB\nallow-recompute layer=**", "use save_from_both_policies:full,none # x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := policy.Parse("f", []byte(s))
		if err != nil {
			if diag.As(err).Line == 0 {
				t.Fatalf("no line: %v", err)
			}
			return
		}
		var lines []string
		for _, l := range p.Lines() {
			lines = append(lines, l.Text)
		}
		if _, err := policy.Parse("f", []byte(strings.Join(lines, "\n"))); err != nil {
			t.Fatalf("%q: %v", lines, err)
		}
	})
}

// TestUnits: every unit of bytes is read, up to those that only large machines need.
func TestUnits(t *testing.T) {
	for text, want := range map[string]int64{"7": 7, "7B": 7, "1.5KiB": 1536, "2MiB": 2 << 20, "1GiB": 1 << 30, "1.5TiB": 3 << 39, "1KB": 1e3, "1.5MB": 15e5, "2GB": 2e9, "1TB": 1e12} {
		n, err := policy.ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
	}
}

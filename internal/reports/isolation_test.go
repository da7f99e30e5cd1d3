package reports

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
)

// planText is all of a plan but the time it took.
func planText(t testing.TB, p *compile.Program) string {
	t.Helper()
	return fmt.Sprintf("%v\n%s\n%v", p.Plan().Order, p.Step, p.Values)
}

// TestP001: with a rematerialised model and a plain one in one process both gave junk, and gradients grew by a third from layer
// to layer (google/flax#4626). A policy is an argument: nothing of it stays, in any order of compilation, from any
// number of goroutines.
func TestP001(t *testing.T) {
	desc := mlp(t, 8, 32, 64, 0)
	hash := desc.Module.String()
	full, none := under(t, "full").Options, compile.Options{}
	planA, planB := planText(t, planned(t, desc, full)), planText(t, planned(t, desc, none))
	require.NotEqual(t, planA, planB)
	for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		got := map[int]string{}
		for _, k := range order {
			got[k] = planText(t, planned(t, desc, []compile.Options{full, none, full}[k]))
			require.Equal(t, hash, desc.Module.String(), "the description changed")
		}
		require.Equal(t, planB, got[1], "order %v: the plain model is not what it is alone", order)
		require.Equal(t, planA, got[0], "order %v", order)
		require.Equal(t, planA, got[2], "order %v: remat of remat", order)
	}
	var wg sync.WaitGroup
	texts, sums := make([]string, 8), make([]string, 8)
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			opt := []compile.Options{full, none}[g%2]
			opt.Keep = true // programs that others have made are not taken
			p, err := tryPlan(desc, opt)
			if err == nil {
				texts[g] = planText(t, p)
			}
			if g >= 4 && !testprog.Long() {
				return
			}
			if q, err := lab.Try(desc, opt); err == nil {
				sums[g] = q.Report.BinarySHA256
			}
		}()
	}
	wg.Wait()
	a, b := run(t, desc, setup{Options: full}), run(t, desc, setup{Options: none})
	for g := range 8 {
		assert.Equal(t, []string{planA, planB}[g%2], texts[g])
		if sums[g] != "" || g < 4 {
			assert.Equal(t, []*outcome{a, b}[g%2].p.Report.BinarySHA256, sums[g])
		}
	}
	require.NotEmpty(t, a.clones())
	assert.Empty(t, b.clones())
	norm := func(b []byte) float64 {
		s := 0.0
		for i := 0; i+4 <= len(b); i += 4 {
			s += float64(f32(b[i:])) * float64(f32(b[i:]))
		}
		return math.Sqrt(s)
	}
	for i := range 8 {
		for _, w := range []string{"norm.g", "fc1.w", "fc2.w"} {
			name := fmt.Sprintf("grad.layers.%d.%s", i, w)
			require.NotEmpty(t, a.steps[0][name])
			assert.Equal(t, 1.0, norm(a.steps[0][name])/norm(b.steps[0][name]), "%s is scaled", name)
		}
	}
	same(t, b.steps, a.steps)

	// Planned IR can't be planned again.
	again := of(a.p.Step, true)
	_, err := tryPlan(again, compile.Options{})
	assert.ErrorContains(t, err, "planned already")
}

// TestP063: what was recomputed depended on the order of a set, and so on a hash seed: ranks could disagree
// (ByteDance-Seed/VeOmni#1166). A hundred compilations are one.
func TestP063(t *testing.T) {
	m := moe(t, 1, 64, 4, 2, 16)
	opt := smallest().Options
	want, kept := planText(t, planned(t, m, opt)), planText(t, planned(t, m, under(t, "full").Options))
	for k := range 99 {
		if testprog.Long() || k < 10 {
			require.Equal(t, want, planText(t, planned(t, m, opt)))
		}
		require.Equal(t, kept, planText(t, planned(t, m, under(t, "full").Options)))
	}
	n := 4
	if testprog.Long() {
		n = 99
	}
	sum := run(t, m, smallest()).p.Report.BinarySHA256
	require.NotEmpty(t, sum)
	for range n {
		fresh := opt
		fresh.Keep = true
		p := lab.Compile(t, m, fresh)
		require.Equal(t, sum, p.Report.BinarySHA256)
	}
}

// TestP101: a recomputation ran another compiled graph, for another shape, than its forward had (pytorch/pytorch#166926). Programs
// have their kernels inside: a clone's are those of its original, whatever else has run.
func TestP101(t *testing.T) {
	a, b := run(t, mlp(t, 4, 32, 64, 0.5), smallest()), run(t, mlp(t, 4, 32, 48, 0.5), smallest())
	first, other, second := a.again(setup{}), b.again(setup{}), a.again(setup{})
	same(t, first, second)
	assert.NotEqual(t, first[0]["loss"], other[0]["loss"])
	for _, o := range []*outcome{a, b} {
		require.NotEmpty(t, o.clones())
		o.sameKernels()
	}
}

// TestP102: compiled checkpointing kept another number of tensors at one width than at another (pytorch/pytorch#144035). On both
// sides of every threshold of code generation the bits are those of keeping everything.
func TestP102(t *testing.T) {
	m := trained(t, "widths", func(s *nn.Scope) *nn.Tensor {
		var loss *nn.Tensor
		for _, d := range []int64{31, 32, 33, 128, 256} {
			l := s.Inf("w%d", d)
			x := s.Input(fmt.Sprintf("x%d", d), dtype.F32, []int64{64, d}, nn.Normal01)
			for i := range 2 {
				r := l.Inf("layers.%d", i)
				x = r.Add(x, r.Dropout(r.Gelu(r.Linear("fc", r.RMSNorm("norm", x), d)), 0.1))
			}
			if e := meanSquare(l, x); loss == nil {
				loss = e
			} else {
				loss = s.Add(loss, e)
			}
		}
		return loss
	})
	all := run(t, m, setup{})
	full := run(t, m, under(t, "full"))
	same(t, all.steps, full.steps)
	for _, d := range []int{31, 32, 33, 128, 256} {
		clones := 0
		for _, c := range full.clones() {
			var at int
			if _, err := fmt.Sscanf(c.Loc.Layer, "w%d", &at); err == nil && at == d {
				clones++
			}
		}
		assert.Positive(t, clones, "width %d", d)
	}
}

// TestP103: marks of checkpointing were lost inside compiled submodules (Lightning-AI/lightning-thunder#2527). Layer paths and
// names are part of the text: what is saved and loaded, cloned, inlined or fused is planned as before.
func TestP103(t *testing.T) {
	m := moe(t, 2, 128, 4, 2, 16)
	loaded, err := ir.Parse(ops.Table(), "saved.ir", m.Module.String())
	require.NoError(t, err)
	for _, s := range []setup{smallest(), under(t, "every:2"), under(t, "", "must recompute layer=layers.1.moe.experts op=grouped_contract")} {
		want := planned(t, m, s.Options)
		assert.Equal(t, want.Plan().Order, planned(t, of(loaded, true), s.Options).Plan().Order)
		assert.Equal(t, want.Plan().Order, planned(t, of(m.Module.Clone(), true), s.Options).Plan().Order)
	}
	// Names of values, and what the model pins, are marks of the text too.
	named := ab(t)
	loaded, err = ir.Parse(ops.Table(), "named.ir", named.Module.String())
	require.NoError(t, err)
	for _, line := range []string{"save_only_these_names:A", "save_anything_except_these_names:B"} {
		want := planned(t, named, under(t, line).Options)
		assert.Positive(t, want.Report.Recomputed)
		assert.Equal(t, want.Plan().Order, planned(t, of(loaded, true), under(t, line).Options).Plan().Order)
	}
	// The layer as a function that is called: the paths inside stay.
	called, err := ir.Parse(ops.Table(), "called.ir", `module "called"
func @block(%x: f32[64,32], %w: f32[32,32]) -> (y) {
  %a = contract %x, %w {lhs_contract=[1], rhs_contract=[0]} : f32[64,32] loc(layers.1.fc)
  %b = tanh %a : f32[64,32] loc(layers.1.act)
  %y = add %x, %b : f32[64,32] loc(layers.1)
  return %y
}
func @step(%w: f32[32,32] {role="param"}, %x: f32[64,32] {feed="normal", role="input"}) -> (loss) {
  %h = contract %x, %w {lhs_contract=[1], rhs_contract=[0]} : f32[64,32] loc(layers.0.fc)
  %y = call %h, %w {callee="block"} : f32[64,32] loc(layers.1)
  %z = call %y, %w {callee="block"} : f32[64,32] loc(layers.2)
  %q = mul %z, %z : f32[64,32] loc(loss)
  %loss = reduce %q {axes=[0, 1], kind="sum"} : f32[] loc(loss)
  return %loss
}
`)
	require.NoError(t, err)
	require.NoError(t, nn.AddTraining(called, recipe(1)))
	s := under(t, "", "must recompute layer=layers.1.act")
	p := planned(t, of(called, true), s.Options)
	assert.Positive(t, p.Report.Policy.Rules[0].Matched)
}

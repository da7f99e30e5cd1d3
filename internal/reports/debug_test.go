package reports

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/debug"
	"reprise/internal/trace"
	"reprise/ir"
	"reprise/ir/dtype"
)

// routed is four layers of attention and a mixture of experts.
func routed(t testing.TB) *frontendModel {
	t.Helper()
	return trained(t, "routed", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 16}, nn.Normal01)
		for i := range 4 {
			l := s.Inf("layers.%d", i)
			a := l.In("attn")
			part := func(name string) *nn.Tensor { return a.Reshape(a.Linear(name, x, 16, nn.NoBias()), 4, 16, 2, 8) }
			y := a.Attention(part("q"), part("k"), part("v"))
			x = l.Add(x, a.Linear("o", a.Reshape(y, 64, 16), 16, nn.NoBias()))
			x = moeLayer(l, x, 4, 1)
		}
		return meanSquare(s, x)
	})
}

// side is a compiled program as a trace takes it.
func (o *outcome) side() trace.Side { return trace.Side{Library: o.lib, Program: o.p} }

// find is the first run of an op of that name in a layer.
func (o *outcome) find(name, prefix string) *compile.Run {
	for i := range o.p.Runs {
		r := &o.p.Runs[i]
		has := r.IR.Name() == name
		for _, b := range r.IR.Regions {
			b.Walk(func(op *ir.Op) { has = has || op.Name() == name })
		}
		if has && strings.HasPrefix(r.Layer, prefix) {
			return r
		}
	}
	require.Failf(o.t, "no run", "%s in %s", name, prefix)
	return nil
}

// diverge runs a program with noise in one op against the sound one and gives the first divergence, its message, and the trace.
func diverge(t testing.TB, all *outcome, fault debug.Fault) (*trace.Divergence, string, string) {
	t.Helper()
	o := compile.Options{Debug: debug.Options{Faults: []debug.Fault{fault}, Unproven: true}}
	p := lab.Compile(t, all.m, o)
	var file bytes.Buffer
	res, err := trace.Compare(all.m, trace.Side{Library: p.Library, Program: p.Program}, all.side(), trace.Options{Seed: 5, Steps: 2, Threads: 2, File: &file})
	require.NoError(t, err)
	require.NotNil(t, res.Divergence)
	return res.Divergence, res.Divergence.Error(), file.String()
}

// TestP024: an op of another project was blamed for what a kernel upstream had done (linkedin/Liger-Kernel#1255). The report
// names the first op that computes other bits, in layer 2's attention, and not the routing that follows from it.
func TestP024(t *testing.T) {
	all := run(t, routed(t), setup{})
	noisy := all.find("attention", "layers.2")
	d, text, file := diverge(t, all, debug.Fault{Kind: debug.Noise, ID: noisy.ID, Element: 3})
	assert.Equal(t, noisy.ID, d.ID)
	assert.Equal(t, "layers.2.attn", d.Layer)
	assert.Equal(t, "attention", d.Kernel)
	assert.Contains(t, text, "layers.2.attn")
	assert.NotEqual(t, d.PlannedHash, d.OtherHash)
	assert.Len(t, d.PlannedHash, 16, "64 bits")
	assert.Positive(t, strings.Count(file, "\n"))
	// Without a fault nothing diverges, whatever the budget.
	res, err := trace.Compare(all.m, run(t, all.m, smallest()).side(), all.side(), trace.Options{Seed: 5, Steps: 2, Threads: 2})
	require.NoError(t, err)
	assert.Nil(t, res.Divergence)
	assert.Positive(t, res.Clones)
}

// TestP025: a fallback matrix product was blamed; that the tensor was of int64 showed that it was the router's own assignment
// (unslothai/unsloth-zoo#1008). The report says the element type, whether the value is an index or a decision, and what it
// was computed from, back to what was kept.
func TestP025(t *testing.T) {
	all := run(t, routed(t), setup{})
	top := all.find("top_k", "layers.1")
	d, text, _ := diverge(t, all, debug.Fault{Kind: debug.FlipBit, ID: top.ID, Result: 1, Bit: 0, Element: 2})
	assert.Equal(t, top.ID, d.ID)
	assert.Equal(t, "layers.1.moe.router", d.Layer)
	assert.True(t, d.Decision)
	assert.Equal(t, "i32", d.DType)
	assert.Contains(t, text, "an index or a decision")
	require.NotEmpty(t, d.Chain)
	assert.True(t, d.Chain[0].Same, "what it was computed from is the same on both sides")
	assert.Contains(t, text, "back to the nearest saved values")
	// Of a value that is no index the report says so.
	_, text, _ = diverge(t, all, debug.Fault{Kind: debug.Noise, ID: all.find("attention", "layers.0").ID, Element: 1})
	assert.Contains(t, text, "an ordinary value")
}

// TestP123: debug output of a thousand lines for eight ops, and a check that looks at shapes only (pytorch/pytorch#105031).
// Values with equal shapes are told apart by their bits; the message is short, the whole trace is a file.
func TestP123(t *testing.T) {
	all := run(t, mlp(t, 4, 32, 64, 0.5), setup{})
	r := all.find("contract", "layers.1.fc1")
	d, text, file := diverge(t, all, debug.Fault{Kind: debug.Noise, ID: r.ID, Element: 9})
	assert.Equal(t, "layers.1.fc1", d.Layer)
	require.NotNil(t, d.Difference)
	assert.EqualValues(t, 1, d.Difference.Differ)
	require.NotNil(t, d.Difference.MaxULP)
	assert.EqualValues(t, 1, *d.Difference.MaxULP)
	assert.LessOrEqual(t, strings.Count(text, "\n")+1, 40, text)
	for i := range all.p.Runs {
		assert.Contains(t, file, all.p.Runs[i].Name)
	}
}

// TestP125: an idea for a test: count how often ops run, and compare gradients bit by bit (InternLM/xtuner#1980). The program
// counts, and every run of this package holds its counts against the plan's; here also by forward and recomputation.
func TestP125(t *testing.T) {
	m := nested(t)
	all := run(t, m, setup{})
	tight := run(t, m, under(t, "", "must recompute layer=blocks.*"))
	back := run(t, m, setup{})
	same(t, all.steps, tight.steps)
	softmax := func(o *outcome) (runs int) {
		for _, r := range o.p.Runs {
			if r.Clone >= 0 && r.Layer == "blocks.1.attn.softmax" && !backward(r.IR) {
				runs++
			}
		}
		return runs
	}
	assert.Equal(t, []int{softmax(all), 2 * softmax(all), softmax(all)}, []int{softmax(all), softmax(tight), softmax(back)}, "n, 2n, n")
	res, err := trace.Compare(m, tight.side(), all.side(), trace.Options{Seed: 5, Steps: 3, Threads: 2})
	require.NoError(t, err)
	require.Nil(t, res.Divergence)
	require.NoError(t, trace.CheckCounts(res.Counts))
	again := int64(0)
	for _, c := range res.Counts {
		assert.EqualValues(t, c.Planned, c.Executed, c.Name)
		if c.Sub == 0 {
			assert.EqualValues(t, 3, c.Forward, c.Name)
		}
		again += c.Recomputed
	}
	assert.EqualValues(t, 3*tight.p.Report.Recomputed, again)
}

// TestP059: what decides about a value and its name were lost from the list of saved values over a change
// (jax-ml/jax#40444). The list has name, type, bytes, source line, fate and reason, and is pinned.
func TestP059(t *testing.T) {
	m := trained(t, "residuals", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			h := nn.Name(l.Linear("fc", x, 64, nn.NoBias()), "hidden")
			x = l.Add(x, l.Linear("out", l.Tanh(h), 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	o := run(t, m, under(t, "save_only_these_names:hidden"))
	var lines []string
	for _, v := range o.p.Values {
		if v.Fate != compile.FateSaved || !strings.HasPrefix(v.Layer, "layers.") || strings.Contains(v.Name, "~vjp") || strings.Contains(v.Name, "grad.") {
			continue
		}
		assert.NotEmpty(t, v.Reason)
		assert.Contains(t, v.Source, "debug_test.go:")
		lines = append(lines, fmt.Sprintf("%s %s %v %d", v.Name, v.DType, v.Shape, v.Bytes))
	}
	text := strings.Join(lines, "\n")
	for _, want := range []string{"layers.0.fc:hidden f32 [64 64] 16384", "layers.1.fc:hidden f32 [64 64] 16384"} {
		assert.Contains(t, text, want)
	}
}

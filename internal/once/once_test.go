package once

import (
	"context"
	le "encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/lower"
	"reprise/passes/policy"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// total is the sum of a state of integers of size bytes each.
func total(t testing.TB, i *runtime.Instance, name string, size int) (n int64) {
	t.Helper()
	b, err := i.Read(name)
	require.NoError(t, err)
	for ; len(b) > 0; b = b[size:] {
		if size == 8 {
			n += int64(le.LittleEndian.Uint64(b))
		} else {
			n += int64(int32(le.LittleEndian.Uint32(b)))
		}
	}
	return n
}

// stateful is a model with all kinds of state: running statistics, a mixture's token counter, a counter and a metric of
// its own, moving averages, a loss scale.
func stateful(t testing.TB, micro int) *frontend.Model {
	r, err := nn.ParseRecipe([]string{"optimizer=adamw", "lr=0.01", "schedule=constant"})
	require.NoError(t, err)
	r.Micro, r.EMA, r.Scale = micro, 0.9, nn.LossScale{First: 4, Every: 2}
	mod, err := nn.Train(nn.Model{Name: "stateful", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{24, 16}, nn.Normal01)
		l := s.Inf("layers.0")
		h := l.Gelu(l.BatchNorm("bn", l.Linear("fc", x, 32), 0.1))
		h = s.Inf("layers.1").Dropout(h, 0.25)
		y, balance := s.Inf("layers.1").MoE("moe", h, 3, 2, 16)
		loss := s.Add(s.MeanAll(s.Square(y)), balance)
		seen := s.Buffer("seen", dtype.I64, nil, nn.Zeros)
		s.Update("seen", s.Add(seen, s.Int(dtype.I64, x.Type.Shape[0])))
		s.Update("metric", s.Add(s.Buffer("metric", dtype.F32, nil, nn.Zeros), loss))
		return loss
	}}, r)
	require.NoError(t, err)
	return &frontend.Model{Name: "stateful", Kind: "ir", Spec: "stateful", Module: mod, Train: true, SHA256: "0"}
}

// TestStateOnce: every state moves once for each micro-batch (or once a step, if it is the optimizer's), at every
// budget, in the compiled program: counters are exact, all else has the bits of the program that keeps everything.
func TestStateOnce(t *testing.T) {
	t.Parallel()
	for _, micro := range []int{1, 2} {
		m := stateful(t, micro)
		var want testprog.Trace
		var metric []byte
		for k, b := range []compile.Budget{{}, {Min: true}} {
			const steps = 5
			p := lab.Compile(t, m, compile.Options{Budget: b})
			step := m.Module.Func("step")
			states := 0
			for _, v := range step.Body.Params {
				if v.IsState() && step.Result(v.Name) != nil {
					states++
				}
			}
			assert.Equal(t, states, p.Proof.States)
			assert.Zero(t, p.Proof.Twice)
			i, err := runtime.Load(p.Library, runtime.Options{Seed: 11, Threads: 1 + k})
			require.NoError(t, err)
			got := testprog.Steer(t, i, m, 0, steps)
			assert.Equal(t, int64(steps*micro), total(t, i, "layers.0.bn.batches", 8))
			assert.Equal(t, int64(steps*24), total(t, i, "seen", 8))
			assert.Equal(t, int64(steps*24*2), total(t, i, "layers.1.moe.tokens", 4))
			assert.Equal(t, int64(steps), total(t, i, "loss_scale.taken", 8))
			scale, err := i.Read("loss_scale.scale")
			require.NoError(t, err)
			assert.Equal(t, float32(16), math.Float32frombits(le.LittleEndian.Uint32(scale)), "doubled every 2 of 5 steps")
			sum, err := i.Read("metric")
			require.NoError(t, err)
			require.NoError(t, i.Close())
			if k == 0 {
				want, metric = got, sum
				continue
			}
			assert.Positive(t, p.Proof.Clones)
			assert.Equal(t, want, got)
			assert.Equal(t, metric, sum)
		}
	}
}

// TestKVCacheOnce: a cache grows by one entry a step, and no step is appended twice.
func TestKVCacheOnce(t *testing.T) {
	t.Parallel()
	mod, err := nn.Infer(nn.Model{Name: "decode", Predict: func(s *nn.Scope) {
		x := s.Input("x", dtype.F32, []int64{1, 8}, nn.Normal01)
		pos := s.Buffer("pos", dtype.I32, nil, nn.Zeros)
		cache := s.In("attn").Buffer("k", dtype.F32, []int64{16, 8}, nn.Zeros)
		next := s.In("attn").Op("dynamic_update_slice", []*nn.Tensor{cache, s.In("attn").Linear("k_proj", x, 8), pos, s.Int(dtype.I32, 0)})
		s.In("attn").Update("k", next)
		s.Update("pos", s.Add(pos, s.Int(dtype.I32, 1)))
		s.Output("y", s.MatMulT(x, next))
	}})
	require.NoError(t, err)
	m := &frontend.Model{Name: "decode", Kind: "ir", Spec: "decode", Module: mod, SHA256: "0"}
	var caches [][]byte
	for _, b := range []compile.Budget{{}, {Min: true}} {
		lib := lab.Compile(t, m, compile.Options{Budget: b})
		i, err := runtime.Load(lib.Library, runtime.Options{Threads: 2})
		require.NoError(t, err)
		for s := range 5 {
			x, err := compile.SyntheticInput(mod.Func("step").Param("x"), 5, s)
			require.NoError(t, err)
			require.NoError(t, i.Bind("x", x.Data))
			require.NoError(t, i.Step())
		}
		assert.Equal(t, int64(5), total(t, i, "pos", 4))
		k, err := i.Read("attn.k")
		require.NoError(t, err)
		assert.NotContains(t, string(k[:5*32]), strings.Repeat("\x00", 32), "five entries")
		assert.Equal(t, make([]byte, 11*32), k[5*32:], "and no more")
		caches = append(caches, k)
		require.NoError(t, i.Close())
	}
	assert.Equal(t, caches[0], caches[1])
}

// maskNet drops with a mask that the model draws by itself, and adds router noise, both used forward and backward.
func maskNet(t testing.TB) *frontend.Model {
	rng := int64(100)
	draw := func(s *nn.Scope, name string, attrs ...ir.Attr) *nn.Tensor {
		rng++
		return s.Op(name, []*nn.Tensor{s.Key()}, append(attrs, ir.A("rng", rng))...)
	}
	return trained(t, nn.Model{Name: "mask", Loss: func(s *nn.Scope) *nn.Tensor {
		rng = 100
		x := s.Input("x", dtype.F32, []int64{32, 64}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := l.Gelu(l.Linear("fc", x, 64))
			mask := draw(l.In("drop"), "bernoulli", ir.A("shape", h.Type.Shape), ir.A("p", 0.8))
			h = l.In("drop").Select(mask, l.Scale(h, 1.25), l.Full(ir.T(dtype.F32), 0))
			noise := l.AddScalar(draw(l.In("jitter"), "uniform", ir.A("shape", h.Type.Shape)), 0.5)
			x = l.In("jitter").Mul(h, noise)
		}
		return s.MeanAll(s.Square(x))
	}})
}

// TestMasksAreNeverStored: no plan at any budget keeps random bits, noise or a mask: each reader draws them
// again, in its own kernel.
func TestMasksAreNeverStored(t *testing.T) {
	t.Parallel()
	models := []*frontend.Model{maskNet(t)}
	models = append(models, testprog.Load(t, "builtin:mlp,in=20,hidden=37,layers=2,batch=6,dropout=0.3", true))
	for _, m := range models {
		least, err := compile.Plan(context.Background(), m, compile.Options{Budget: compile.Budget{Min: true}, PlanSteps: planSteps})
		require.NoError(t, err)
		lo, hi := least.Report.ArenaBytes, least.Report.SaveAllPeakBytes
		require.Less(t, lo, hi)
		for _, b := range []int64{lo, (lo + hi) / 2, hi - 1} {
			p, err := compile.Plan(context.Background(), m, compile.Options{Budget: compile.Budget{Bytes: b}, NoMinimum: true, PlanSteps: planSteps})
			require.NoError(t, err)
			drawn := 0
			f := p.Step.Func("step")
			f.Body.Walk(func(op *ir.Op) {
				if op.Det() == ir.Keyed && len(op.Regions) == 0 && op.Family() == "random" {
					drawn++
				}
			})
			assert.Positive(t, drawn)
			for _, op := range f.Body.Ops {
				made := op.Results
				if op.Name() == "fused" {
					made = op.Regions[0].Results
				}
				for _, v := range made {
					if v.Op == nil || lower.IsConstant(op) || v.Type.DType == dtype.Key || v.Type.Rank() == 0 {
						continue
					}
					mask := v.Type.DType == dtype.Bool && op.Det() == ir.Keyed
					assert.False(t, mask, "a mask in memory: %s in %s", v.Op.Name(), op.Loc.Layer)
					alone := v.Op.Family() == "random" && len(v.Op.Operands) == 1
					assert.False(t, alone, "random bits in memory: %s in %s", v.Op.Name(), op.Loc.Layer)
				}
			}
		}
	}
	all := lab.Compile(t, models[0], compile.Options{})
	p := lab.Compile(t, models[0], compile.Options{Budget: compile.Budget{Min: true}})
	assert.Positive(t, p.Proof.Clones)
	assert.Equal(t, all.Run(t, 3, 1), p.Run(t, 3, 2))
}

// TestDeterminismByAttributes: whether an op is pinned is a function of what it is: attention without dropout is exact
// and contributes nothing, with dropout it is random by a key and may be recomputed, and only a kernel
// that says so of itself is kept. (P012)
func TestDeterminismByAttributes(t *testing.T) {
	t.Parallel()
	model := func(p float64, atomic bool) *frontend.Model {
		return trained(t, nn.Model{Name: "att", Loss: func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{2, 16, 16}, nn.Normal01)
			for i := range 2 {
				a := s.Inf("layers.%d", i).In("attn")
				y := a.Attention(a.Project("q", x, 2, 8), a.Project("k", x, 2, 8), a.Project("v", x, 2, 8), nn.DropProbs(p))
				x = a.Join("o", y, 16)
			}
			if atomic {
				x = s.In("last").Foreign(nn.Foreign{Library: "libk.so", Symbol: "scatter_atomic", Determinism: "tol", VJP: "scatter_atomic_vjp"}, []ir.Type{x.Type}, x)[0]
			}
			return s.MeanAll(s.Square(x))
		}})
	}
	for _, c := range []struct {
		p      float64
		atomic bool
		det    ir.Det
		pinned int
	}{{0, false, ir.Exact, 0}, {0.1, false, ir.Keyed, 0}, {0, true, ir.Exact, 2}} {
		p, err := compile.Plan(context.Background(), model(c.p, c.atomic), compile.Options{Budget: compile.Budget{Min: true}, PlanSteps: planSteps})
		require.NoError(t, err)
		p.Step.Func("step").Body.Walk(func(op *ir.Op) {
			if op.Name() == "attention" {
				assert.Equal(t, c.det, op.Det())
			}
		})
		assert.Equal(t, c.pinned, p.Report.Pinned)
		for _, v := range p.Values {
			if v.Fate == compile.FatePinned {
				assert.Contains(t, v.Reason, "not fixed")
			}
		}
	}
}

// gathered has a weight that is gathered from all participants before it is used, a gradient that is reduced, and a
// collective whose value nothing reads.
const gathered = `module "gathered"
func @init(%key: key[] {role="key"}) -> (w, w0) {
  %w = normal %key {rng=1, shape=[4,8,64]} : f32[4,8,64] loc(fc)
  %w0 = normal %key {rng=2, shape=[32,32]} : f32[32,32] loc(in)
  return %w, %w0
}
func @step(%x: f32[64,32], %w: f32[4,8,64] {role="param"}, %w0: f32[32,32] {role="param"}) -> (loss, w, w0) {
  %h0 = contract %x, %w0 {lhs_contract=[1], rhs_contract=[0]} : f32[64,32] loc(in)
  %g = all_gather %w {axis=0} : f32[4,8,64] loc(fsdp.gather)
  %p = transpose %g {perm=[1,0,2]} : f32[8,4,64] loc(fsdp.view)
  %r = reshape %p {shape=[32,64]} : f32[32,64] loc(fsdp.view)
  %h = contract %h0, %r {lhs_contract=[1], rhs_contract=[0]} : f32[64,64] loc(fc)
  %unused = all_to_all %h {split_axis=0, concat_axis=0} : f32[64,64] loc(moe.dispatch)
  %a = tanh %h : f32[64,64] loc(act)
  %b = all_reduce %a {kind="sum"} : f32[64,64] loc(tp)
  %q = mul %b, %b : f32[64,64] loc(out)
  %loss = reduce %q {axes=[0,1], kind="sum"} : f32[] loc(out)
  %gw, %gw0 = gradient %loss, %w, %w0 : f32[4,8,64], f32[32,32] loc(out)
  %nw = sub %w, %gw : f32[4,8,64] loc(opt)
  %nw0 = sub %w0, %gw0 : f32[32,32] loc(opt)
  return %loss, %nw, %nw0
}
`

func collectivesOf(f *ir.Func) (out []string) {
	for _, op := range f.Body.Ops {
		if op.Effect() == ir.EffectComm {
			out = append(out, op.Name())
		}
	}
	return out
}

// TestCollectives: on one participant too, a collective runs once at the smallest budget, in the program's order, and
// one whose value nothing reads is in no program, forward or recomputed. Whoever asks for the recomputation of a
// gather gets it, and then no view of what was gathered is kept. (P095, P096, P097)
func TestCollectives(t *testing.T) {
	t.Parallel()
	mod, err := ir.Parse(ops.Table(), "gathered.ir", gathered)
	require.NoError(t, err)
	m := &frontend.Model{Name: "gathered", Kind: "ir", Spec: "gathered.ir", Module: mod, Train: true, SHA256: "0"}
	want := []string{"all_gather", "all_reduce", "all_reduce", "reduce_scatter"} // the last two are the derivatives
	for _, b := range []compile.Budget{{}, {Min: true}} {
		p, err := compile.Plan(context.Background(), m, compile.Options{Budget: b, PlanSteps: planSteps})
		require.NoError(t, err)
		assert.Equal(t, want, collectivesOf(p.Step.Func("step")))
		for _, c := range p.Proof.Once {
			assert.Equal(t, c.Before, c.Planned)
		}
	}
	none, err := policy.Load("none")
	require.NoError(t, err)
	rules, err := none.With("allow-recompute layer=fsdp.*", "must recompute op=all_gather")
	require.NoError(t, err)
	opt := compile.Options{Policy: rules, Budget: compile.Budget{Percent: 100}, NoMinimum: true, PlanSteps: planSteps}
	p, err := compile.Plan(context.Background(), m, opt)
	require.NoError(t, err)
	assert.Equal(t, []string{"fsdp.gather"}, p.Report.RecomputeAllowed)
	assert.Equal(t, 2, strings.Count(fmt.Sprint(collectivesOf(p.Step.Func("step"))), "all_gather"))
	for _, v := range p.Values {
		if strings.HasPrefix(v.Layer, "fsdp.") {
			assert.NotEqual(t, compile.FateSaved, v.Fate, "%s: %s", v.Name, v.Reason)
		}
	}
	lib := lab.Compile(t, m, compile.Options{})
	again := lab.Compile(t, m, opt)
	assert.Equal(t, lib.Run(t, 2, 1), again.Run(t, 2, 2))
}

// TestBoundedCounts: how many rows a group has is data, the rows of all groups are its bound: the plan holds for every
// split, as arena and program are those of the bound. (P075)
func TestBoundedCounts(t *testing.T) {
	t.Parallel()
	m := trained(t, nn.Model{Name: "grouped", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{12, 8}, nn.Normal01)
		counts := s.Input("counts", dtype.I32, []int64{3}, nn.Labels(4))
		e := s.In("experts")
		h := e.Op("grouped_contract", []*nn.Tensor{x, e.Param("w1", []int64{3, 8, 16}, nn.Normal(0.5)), counts})
		h = e.Op("grouped_contract", []*nn.Tensor{e.Gelu(h), e.Param("w2", []int64{3, 16, 8}, nn.Normal(0.5)), counts})
		return s.MeanAll(s.Square(h))
	}})
	p := lab.Compile(t, m, compile.Options{Budget: compile.Budget{Min: true}})
	assert.LessOrEqual(t, p.Report.PromisedPeakBytes, p.Report.BudgetBytes)
	ref, err := compile.Reference(m.Module)
	require.NoError(t, err)
	state, err := interp.RunNamed(ref.Func("init"), map[string]*tensor.Tensor{"key": tensor.Key(11, math.MaxUint32, 0)}, interp.Options{})
	require.NoError(t, err)
	x, err := compile.SyntheticInput(ref.Func("step").Param("x"), 5, 0)
	require.NoError(t, err)
	for _, c := range [][]int32{{0, 0, 0}, {0, 0, 12}, {12, 0, 0}, {1, 1, 1}, {1, 0, 11}, {4, 4, 4}, {99, 0, 1}} {
		in := map[string]*tensor.Tensor{"x": x, "counts": tensor.Of(c, 3), "step": tensor.Of([]int64{0}), "key": tensor.Key(11, 0, 0)}
		for k, v := range state {
			in[k] = v
		}
		want, err := interp.RunNamed(ref.Func("step"), in, interp.Options{})
		require.NoError(t, err)
		i, err := runtime.Load(p.Library, runtime.Options{Seed: 11, Threads: 3})
		require.NoError(t, err)
		require.NoError(t, i.Bind("x", x.Data))
		require.NoError(t, i.Bind("counts", in["counts"].Data))
		require.NoError(t, i.Step())
		for _, r := range ref.Func("step").Results {
			got, err := i.Read(r)
			require.NoError(t, err)
			assert.Equal(t, want[r].Data, got, "%s with counts %v", r, c)
		}
		require.NoError(t, i.Close())
	}
}

// TestSizesPinNothing: a size is a number of the program: no op of the table reads one, so that nothing is kept to know
// how large it was. (P074)
func TestSizesPinNothing(t *testing.T) {
	t.Parallel()
	for _, d := range ops.Table().All() {
		for _, word := range []string{"dim", "size", "shape", "shape_of", "rank"} {
			assert.False(t, slices.Contains(strings.Split(d.Name, "_"), word) && d.Name != "reshape", d.Name)
		}
	}
	m := trained(t, nn.Model{Name: "sizes", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 64}, nn.Normal01)
		big := s.In("big").Linear("fc", x, 256)
		y := s.In("out").Linear("fc", s.Tanh(big), 8)
		return s.Scale(s.SumAll(s.Square(y)), 1/float64(big.Type.Len())) // a size of big, used to the last
	}})
	p, err := compile.Plan(context.Background(), m, compile.Options{NoMinimum: true, PlanSteps: planSteps})
	require.NoError(t, err)
	assert.Empty(t, p.Proof.Once)
	for _, v := range p.Values {
		if v.Layer == "big" && strings.HasSuffix(v.Op, "contract") {
			t.Errorf("%s outlives its activation: %s", v.Name, v.Reason)
		}
	}
}

// TestSecondWriteIsFound: a launch that writes to a state a second time is found in the program itself.
func TestSecondWriteIsFound(t *testing.T) {
	t.Parallel()
	p, err := compile.Compile(context.Background(), testprog.Load(t, "builtin:mlp,in=20,hidden=37,layers=1,batch=6", true), compile.Options{NoMinimum: true, PlanSteps: planSteps})
	require.NoError(t, err)
	require.NoError(t, p.WrittenOnce(p.Exe))
	i := slices.IndexFunc(p.Exe.Step, func(in exe.Inst) bool {
		return slices.ContainsFunc(in.Args, func(a exe.Arg) bool { return a.Write && a.Offset < p.Exe.ResidentBytes })
	})
	x := *p.Exe
	x.Step = append(slices.Clone(x.Step), x.Step[0], x.Step[i])
	assert.ErrorContains(t, p.WrittenOnce(&x), "by 2 ops or copies of the step instead of 1 (P6)")
	x.Step = slices.Delete(slices.Clone(p.Exe.Step), i, i+1)
	assert.ErrorContains(t, p.WrittenOnce(&x), "instead of 1 (P6)")
}

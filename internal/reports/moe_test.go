package reports

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/planner"
	"reprise/runtime"
)

// TestP028: a request: route once outside of the recomputed part, and run only the experts again
// (inclusionAI/AReno#540). That is what a plan does by itself: decisions run once, experts' contractions may run again.
func TestP028(t *testing.T) {
	m := moe(t, 2, 128, 4, 2, 16)
	all := run(t, m, setup{})
	least := run(t, m, smallest())
	same(t, all.steps, least.steps)
	least.once()
	for _, o := range []*outcome{all, least} {
		for _, layer := range []string{"layers.0.", "layers.1."} {
			for name, n := range map[string]int{"top_k": 1, "histogram": 1, "argsort": 1} {
				assert.Equal(t, n, o.runs(name, layer), "%s of %s", name, layer)
			}
		}
	}
	// Under a policy that recomputes all it may, the experts' contraction runs twice, and decisions once still.
	full := run(t, m, under(t, "", "must recompute layer=layers.*.moe"))
	same(t, all.steps, full.steps)
	full.once()
	for _, layer := range []string{"layers.0.", "layers.1."} {
		n := 0
		full.each(func(op *ir.Op) {
			if op.Name() == "grouped_contract" && !backward(op) && strings.HasPrefix(op.Loc.Layer, layer) {
				n++
			}
		})
		assert.Equal(t, 2, n, layer)
		assert.Equal(t, 1, full.runs("top_k", layer))
		assert.Equal(t, 1, full.runs("histogram", layer))
	}
	for k, st := range least.steps {
		total := int32(0)
		for _, n := range i32s(st["layers.1.moe.tokens"]) {
			total += n
		}
		assert.EqualValues(t, 256*(k+1), total, "tokens counted")
	}
}

// counted is M-MOE of which the loss reads the running counts, as a global balancing loss does.
func counted(t testing.TB, micro int) *frontend.Model {
	t.Helper()
	return accumulated(t, "counted", micro, func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{128, 16}, nn.Normal01)
		var balance *nn.Tensor
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			var n *nn.Tensor
			x, n = moeCounted(l, x, 4, 1)
			counts := l.Cast(n, dtype.F32)
			share := l.Div(counts, l.AddScalar(l.SumAll(counts), 1))
			b := l.SumAll(l.Mul(share, l.Mean(l.Softmax(l.Linear("gate", x, 4)), 0)))
			if balance == nil {
				balance = b
			} else {
				balance = s.Add(balance, b)
			}
		}
		return s.Add(meanSquare(s, x), balance)
	})
}

// TestP036: a balancing loss over several micro-batches was refused together with checkpointing, since recomputation
// would move the counts (pytorch/torchtitan#4772). Counts are versions of a value: each micro-batch's backward reads
// the one of its own forward.
func TestP036(t *testing.T) {
	m := counted(t, 4)
	all := run(t, m, setup{})
	least := run(t, m, smallest())
	same(t, all.steps, least.steps)
	least.once()
	for k, st := range least.steps {
		total := int32(0)
		for _, n := range i32s(st["layers.0.moe.tokens"]) {
			total += n
		}
		assert.EqualValues(t, 128*(k+1), total)
	}
}

// TestP075: a planner could not work with sizes that only the data know (pytorch/pytorch#144095). An expert's number of
// tokens is such a size: its bound is the shape, and the plan holds for every count, the peak being the same.
func TestP075(t *testing.T) {
	const T, d, E = 64, 16, 4
	m := moe(t, 1, T, E, 1, d)
	all, least := run(t, m, setup{}), run(t, m, smallest())
	// Router weights that send all tokens to one expert, none to another, one to a third: the feature that
	// expert 1 looks at is of another sign in the first token than in all others.
	x := all.input(m.Module.Func("step").Param("x"), 0)
	for r := range T {
		x.F32()[r*d] = -1
	}
	x.F32()[0] = 1
	for _, o := range []*outcome{all, least} {
		o.given = map[string]*tensor.Tensor{"x": x}
	}
	router := func(kind string) []byte {
		w := make([]byte, 4*d*E)
		set := func(r, c int, v float32) { binary.LittleEndian.PutUint32(w[4*(r*E+c):], math.Float32bits(v)) }
		switch kind {
		case "ties": // all scores equal: the lower index wins
		case "one token elsewhere":
			set(0, 1, 1)
		case "split":
			set(1, 2, 1)
		}
		return w
	}
	seen := map[int32]bool{}
	for _, kind := range []string{"ties", "one token elsewhere", "split"} {
		var got []steps
		for _, o := range []*outcome{all, least} {
			l, err := runtime.Open(o.lib)
			require.NoError(t, err)
			i, err := l.Create(runtime.Options{Seed: 11, Threads: 2})
			require.NoError(t, err)
			require.NoError(t, i.Write("layers.0.moe.router.w", router(kind)))
			st := o.step(i, 0)
			got = append(got, steps{st})
			require.NoError(t, i.Close())
			require.NoError(t, l.Close())
			for _, n := range i32s(st["layers.0.moe.tokens"]) {
				seen[n] = true
			}
		}
		same(t, got[0], got[1])
	}
	assert.True(t, seen[0] && seen[1] && seen[T], "counts seen: %v", seen)
	// Without a bound there is no program: every size is part of a type.
	_, err := ir.Parse(ops.Table(), "open.ir", `module "open"
func @step(%x: f32[?,16] {role="input"}) -> (y) {
  %y = neg %x : f32[?,16] loc(a)
  return %y
}
`)
	e := diag.As(err)
	require.NotNil(t, e)
	assert.Equal(t, 2, e.Line)
	assert.Equal(t, "open.ir", e.File)
}

// noisyMoE is M-MOE behind NOISY: some tokens are equal, so that exact ties meet near ones.
func noisyMoE(t testing.TB, determinism string) *frontend.Model {
	t.Helper()
	return trained(t, "noisymoe"+determinism, func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 16}, nn.Normal01)
		x = s.Concat(0, x, x) // every token twice
		for i := range 4 {
			l := s.Inf("layers.%d", i)
			x = moeLayer(l, noisy(l.In("attn"), x, determinism), 2, 1)
		}
		return meanSquare(s, x)
	})
}

// TestP002: expert splits were 99 and 105 in forward and 98 and 106 in recomputation, since something before the gate was not
// deterministic; saving top-k and sigmoid did not help (pytorch/torchtitan#1117). What has no fixed order runs once, and so
// does the decision behind it: all read those.
func TestP002(t *testing.T) {
	calls := counter(t, "noisy_calls")
	for _, determinism := range []string{"tol", "unknown"} {
		m := noisyMoE(t, determinism)
		all := run(t, m, setup{})
		for _, s := range []setup{smallest(), under(t, "full"), {Options: compile.Options{Budget: compile.Budget{Min: true}, Policy: under(t, "nothing_saveable").Policy}}} {
			o := run(t, m, s)
			before := calls() % 2
			o.again(setup{})
			if calls()%2 != before { // eight calls: the noise is where it was
				t.Fatal("an odd number of calls")
			}
			ref := all.again(setup{})
			same(t, ref, o.again(setup{}))
			for i := range 4 {
				layer := fmt.Sprintf("layers.%d.", i)
				assert.Equal(t, 1, o.runs("top_k", layer+"moe"))
				assert.Equal(t, 1, o.runs("histogram", layer+"moe"))
				assert.Equal(t, 1, o.runs("argsort", layer+"moe"))
				assert.Equal(t, 1, forwardForeign(o, layer))
			}
			require.NotEmpty(t, o.clones())
			for _, st := range o.steps {
				for i := range 4 {
					n := i32s(st[fmt.Sprintf("layers.%d.moe.tokens", i)])
					assert.Zero(t, (n[0]+n[1])%128)
				}
			}
		}
		// To have the router run again is an error that names layer and op.
		_, err := tryPlan(m, under(t, "", "must recompute layer=layers.3.moe.router").Options)
		e := diag.As(err)
		require.NotNil(t, e)
		assert.Equal(t, "layers.3.moe.router", e.Layer)
		assert.Contains(t, []string{"top_k", "histogram"}, e.Op)
		assert.Contains(t, e.Message, "layers.3.moe.router")
		assert.Contains(t, e.Hint, "allow-recompute layer=layers.3.moe.router")
	}
}

// forwardForeign counts the runs of foreign kernels of the forward program.
func forwardForeign(o *outcome, prefix string) int {
	n := 0
	o.each(func(op *ir.Op) {
		if op.Name() == "foreign" && !backward(op) && strings.HasPrefix(op.Loc.Layer, prefix) {
			n++
		}
	})
	return n
}

// TestP018: a mixture of experts failed on its first recomputed step, nothing being pinned by default
// (NVIDIA-NeMo/Automodel#2635). Pinning is what happens when nobody says anything; opting out names the layers.
func TestP018(t *testing.T) {
	m := moe(t, 2, 128, 4, 2, 16)
	least := run(t, m, smallest())
	once := map[string]bool{}
	for _, c := range least.p.Proof.Once {
		once[c.Op] = true
		assert.Equal(t, c.Before, c.Planned, c.Op)
	}
	assert.True(t, once["top_k"] && once["histogram"] && once["argsort"], "%v", once)
	assert.Empty(t, least.p.Report.Warnings)
	out := planned(t, m, compile.Options{Budget: compile.Budget{Min: true}, Policy: under(t, "", "allow-recompute layer=layers.1.moe.router").Policy})
	require.NotEmpty(t, out.Report.Warnings)
	assert.Contains(t, strings.Join(out.Report.Warnings, "\n"), "layers.1.moe.router")
	assert.NotContains(t, strings.Join(out.Report.Warnings, "\n"), "layers.0.moe.router")
	assert.Equal(t, []string{"layers.1.moe.router"}, out.Report.RecomputeAllowed)
}

// TestP022: a kernel gave thirty results in thirty calls when its autotuner picked one variant
// (fla-org/flash-linear-attention#945). The probe runs every kernel of a program again and again on equal operands; what is
// not declared is unknown, and runs once.
func TestP022(t *testing.T) {
	build := func(determinism string) *frontend.Model {
		return trained(t, "race"+determinism, func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{256, 16}, nn.Normal01)
			h := s.Linear("fc", x, 256)
			sum := foreign(s.In("norm"), nn.Foreign{Symbol: "race", Determinism: determinism, Tiles: 64, Variant: "warps4"}, s.Reshape(h, 256*256), ir.T(dtype.F32))
			still := s.Op("stop_gradient", []*nn.Tensor{sum})
			return meanSquare(s, s.Add(h, still))
		})
	}
	probe := func(m *frontend.Model) *compile.Probed {
		p := lab.Compile(t, m, compile.Options{})
		o := &outcome{t: t, m: m, p: p.Program}
		found, err := p.Probe(p.Library, 30, 11, func(v *ir.Value) ([]byte, error) { return o.input(v, 0).Data, nil })
		require.NoError(t, err)
		var raced *compile.Probed
		for i := range found {
			if found[i].Symbol == "race" {
				raced = &found[i]
			} else {
				assert.LessOrEqual(t, found[i].Distinct, 1, "%s of ours", found[i].Symbol)
			}
		}
		require.NotNil(t, raced)
		return raced
	}
	lie := probe(build("exact"))
	assert.Greater(t, lie.Distinct, 1)
	assert.True(t, lie.Lies())
	assert.Equal(t, "warps4", lie.Variant)
	assert.Equal(t, "norm", lie.Layer)
	assert.Contains(t, lie.Error().Error(), "race")
	honest := build("") // says nothing
	assert.False(t, probe(honest).Lies())
	least := planned(t, honest, compile.Options{Budget: compile.Budget{Min: true}})
	pinned := 0
	for _, v := range least.Values {
		if v.Fate == compile.FatePinned {
			pinned++
			assert.Equal(t, "norm", v.Layer)
			assert.Contains(t, v.Reason, "nothing is known")
		}
	}
	assert.Equal(t, 1, pinned)
}

// TestP023: a second such kernel, quiet alone and not in production: forward and recomputation had picked different variants
// (fla-org/flash-linear-attention#1228). The variant is part of the op: a clone has its original's, and another does not
// verify.
func TestP023(t *testing.T) {
	m := trained(t, "variants", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := l.Linear("fc", x, 32)
			f := nn.Foreign{Symbol: "twice", Determinism: "exact", VJP: "twice_vjp", CostNs: 10, Variant: []string{"warps4", "warps8"}[i%2]}
			x = l.Add(x, l.Linear("out", l.Tanh(foreign(l.In("fast"), f, h, h.Type)), 32))
		}
		return meanSquare(s, x)
	})
	all := run(t, m, setup{})
	o := run(t, m, under(t, "", "must recompute op=foreign"))
	same(t, all.steps, o.steps)
	o.sameKernels()
	n := 0
	for _, c := range o.clones() {
		if c.Name() == "foreign" {
			n++
			assert.Equal(t, c.Remat.Attrs.Str("variant"), c.Attrs.Str("variant"))
			mod := o.p.Step.Clone()
			for _, op := range mod.Func("step").Body.Ops {
				if op.Remat != nil && op.Name() == "foreign" {
					op.Attrs = op.Attrs.Set("variant", "other")
					break
				}
			}
			e := diag.As(ir.Verify(mod))
			require.NotNil(t, e)
			assert.Contains(t, e.Message, "(V6)")
		}
	}
	assert.Equal(t, 3, n)
}

// TestP029: a compiler's rematerialization ran random and other such ops again (awslabs/raf#33). That an op runs once is part of
// the problem that every solver is given: of all orders of a small graph, those that break it are no plans.
func TestP029(t *testing.T) {
	for _, bad := range []planner.Op{{Det: planner.DetUnknown}, {Det: planner.DetTol}, {Det: planner.DetDecides}, {Det: planner.DetExact, Effect: planner.EffectWrites},
		{Det: planner.DetExact, Effect: planner.EffectHost}, {Det: planner.DetExact, Effect: planner.EffectComm}, {Det: planner.DetKeyed, Effect: planner.EffectReads}} {
		// A chain of five and its way back, op 2 being the bad one.
		pr := &planner.Problem{Values: []planner.Value{{Resident: true}}}
		add := func(in ...int) int {
			pr.Values = append(pr.Values, planner.Value{Bytes: 1})
			pr.Ops = append(pr.Ops, planner.Op{Cost: 1, Det: planner.DetExact, Inputs: in, Outputs: []int{len(pr.Values) - 1}})
			return len(pr.Values) - 1
		}
		chain := []int{0}
		for range 5 {
			chain = append(chain, add(chain[len(chain)-1]))
		}
		back := chain[5]
		for i := 4; i >= 0; i-- {
			back = add(back, chain[i])
		}
		pr.Values[back].Output = true
		pr.Ops[2].Det, pr.Ops[2].Effect = bad.Det, bad.Effect
		require.True(t, pr.Ops[2].RunsOnce())
		// Every set of forward ops that run again right before the first backward op that reads them.
		legal, illegal := 0, 0
		for set := range 1 << 5 {
			order := []int{0, 1, 2, 3, 4}
			for i := range 5 {
				for j := range 5 {
					if set>>j&1 == 1 && j <= 4-i {
						order = append(order, j)
					}
				}
				order = append(order, 5+i)
			}
			_, err := planner.Check(pr, &planner.Plan{Order: order}, -1)
			if set>>2&1 == 1 {
				require.Error(t, err, "%v", order)
				illegal++
			} else {
				require.NoError(t, err, "%v", order)
				legal++
			}
		}
		assert.Equal(t, 16, legal)
		assert.Equal(t, 16, illegal)
		for b := range int64(8) {
			plan, err := planner.Solve(context.Background(), pr, planner.Options{Budget: 2 + b, Steps: 2000})
			if err != nil {
				continue
			}
			n := 0
			for _, i := range plan.Order {
				if i == 2 {
					n++
				}
			}
			assert.Equal(t, 1, n)
		}
	}
}

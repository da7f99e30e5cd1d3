package reports

import (
	"context"
	"debug/elf"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
	"reprise/ir/ops"
	"reprise/passes/lower"
	"reprise/planner"
	"reprise/runtime/exe"
)

// noWriter: no launch of the program writes the bytes of a value.
func (o *outcome) noWriter(v *exe.Value) {
	o.t.Helper()
	for _, in := range o.p.Exe.Step {
		for _, a := range in.Args {
			assert.False(o.t, a.Write && !a.Const && a.Offset < v.Offset+v.Bytes && v.Offset < a.Offset+a.Bytes, "%s writes %s", in.Symbol, v.Name)
		}
	}
}

// zeros tells which f32 elements are zero.
func zeros(b []byte) []bool {
	out := make([]bool, len(b)/4)
	for i := range out {
		out[i] = b[4*i]|b[4*i+1]|b[4*i+2]|b[4*i+3] == 0
	}
	return out
}

// TestP003: with RNG state left alone in recomputation, as torchtitan had switched on for everybody, dropout drew a
// second mask in backward (pytorch/torchtitan#1323). Here a draw is a function of key and op id: there is no
// state to keep, and no switch.
func TestP003(t *testing.T) {
	m := trained(t, "mask", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		w := s.Param("w", []int64{64, 32}, nn.Ones)
		y := s.In("drop").Dropout(w, 0.5)
		s.Output("y", y)
		for i := range 4 {
			x = mlpLayer(s.Inf("layers.%d", i), x, 0.5)
		}
		return s.Add(meanSquare(s, x), s.SumAll(y))
	})
	all, least := exact(t, m)
	half := run(t, m, atBudget(max(least.p.Report.ArenaBytes, all.p.Report.ArenaBytes/2)))
	same(t, all.steps, half.steps)
	full := run(t, m, under(t, "full"))
	same(t, all.steps, full.steps)
	require.NotEmpty(t, least.clones())
	require.NotEmpty(t, full.clones())
	for _, o := range []*outcome{all, least, half, full} {
		lib, err := elf.Open(o.lib)
		require.NoError(t, err)
		symbols, err := lib.Symbols()
		require.NoError(t, err)
		require.NotEmpty(t, symbols)
		for _, s := range symbols {
			for _, word := range []string{"rng", "random", "seed_state", "philox_state"} {
				assert.NotContains(t, strings.ToLower(s.Name), word, "code that keeps a generator's state")
			}
		}
		require.NoError(t, lib.Close())
		for _, st := range o.steps {
			assert.Equal(t, zeros(st["y"]), zeros(st["grad.w"]), "the mask of backward is that of forward")
			assert.Contains(t, zeros(st["y"]), true)
		}
		assert.NotEqual(t, zeros(o.steps[0]["y"]), zeros(o.steps[1]["y"]))
		// The only random state is the key, which is given and never written.
		keys := 0
		for i := range o.p.Exe.Values {
			if v := &o.p.Exe.Values[i]; v.DType == dtype.Key {
				keys++
				assert.Equal(t, exe.RoleKey, v.Role)
				o.noWriter(v)
			}
		}
		assert.Equal(t, 1, keys)
	}
	// Nor does dropout cost a launch beyond its own draws: keeping everything, the program with it has one
	// more for each draw at most.
	plain := planned(t, mlp(t, 4, 32, 64, 0), compile.Options{})
	with := planned(t, mlp(t, 4, 32, 64, 0.5), compile.Options{})
	assert.LessOrEqual(t, with.Report.Ops-plain.Report.Ops, 2*4)
}

// TestP004: a planner that may recompute by budget drew fresh numbers for every recomputed random op
// (pytorch/pytorch#190758). Every budget gives the same bits or an error with the least budget, and no way
// through the planner leads around what may not run twice.
func TestP004(t *testing.T) {
	m := mlp(t, 4, 32, 64, 0.5)
	all := run(t, m, setup{})
	top := float64(all.p.Report.ArenaBytes)
	_, err := compile.ParseBudget("0B")
	require.Error(t, err)
	for _, b := range []int64{1, int64(top * 0.005), int64(top * 0.5), int64(top * 0.75), int64(top * 0.99), int64(top), 1 << 40} {
		o := atBudget(b)
		if _, err := tryPlan(m, o.Options); err != nil {
			var be *compile.BudgetError
			require.ErrorAs(t, err, &be, "budget %d", b)
			require.Greater(t, be.MinBudget, b)
			continue
		}
		same(t, all.steps, run(t, m, o).steps)
	}

	// The same graph, its random ops declared to have hidden state: whatever plans it, they run once.
	pr := *all.p.Problem()
	pr.Ops = slices.Clone(pr.Ops)
	step := all.p.Step.Func("step").Body.Ops
	once := map[int]bool{}
	k := 0
	for _, op := range step {
		if lower.IsConstant(op) {
			continue
		}
		random := false
		for _, r := range op.Regions {
			r.Walk(func(o *ir.Op) { random = random || o.Name() == "dropout" })
		}
		if random || op.Name() == "dropout" {
			i := all.p.Plan().Order[k]
			pr.Ops[i].Det = planner.DetUnknown
			once[i] = true
		}
		k++
	}
	require.NotEmpty(t, once)
	legal := func(who string, plan *planner.Plan, err error) {
		t.Helper()
		if err != nil {
			return // refused: no numbers at all
		}
		_, err = planner.Check(&pr, plan, -1)
		require.NoError(t, err, who)
		runs := map[int]int{}
		for _, i := range plan.Order {
			runs[i]++
		}
		for i := range once {
			require.Equal(t, 1, runs[i], "%s runs %s again", who, pr.Ops[i].Name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	least, err := planner.MinBudget(context.Background(), &pr)
	legal("min-budget", least, err)
	require.NoError(t, err)
	for _, b := range []int64{least.PeakBytes, (least.PeakBytes + all.p.Report.LiveBytes) / 2, all.p.Report.LiveBytes} {
		for _, o := range []planner.Options{{Budget: b, Steps: 1}, {Budget: b, Steps: 2000}, {Budget: b, TimeLimit: time.Nanosecond}, {Budget: b, Steps: 2000, Layout: true, Align: 64}} {
			plan, err := planner.Solve(context.Background(), &pr, o)
			legal("solve", plan, err)
			plan, err = planner.Solve(ctx, &pr, o)
			legal("cancelled", plan, err)
		}
		for _, bl := range planner.Baselines() {
			plan, err := planner.PlanBaseline(context.Background(), &pr, bl.Name, b, -1)
			legal(bl.Name, plan, err)
		}
	}
}

// TestP008: random bits recomputed from one key were others where the compiler had cut the recomputation
// differently (jax-ml/jax#21046). Bits depend on key, op id and the element's place: not on vector width,
// threads, fusion, budget, or who runs it. (Vectors of 4 lanes, and the device's code: TestP008 of codegen/cpu and codegen/ptx.)
func TestP008(t *testing.T) {
	const rows, cols, p = 64, 256, 0.3
	m := trained(t, "bits", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{rows, cols}, nn.Normal01)
		one := s.Param("one", []int64{rows, cols}, nn.Ones)
		y := s.In("alone").Dropout(one, p) // id 0: by itself, as it is an output
		s.Output("alone", y)
		h := s.In("epilogue").Dropout(s.Linear("fc", x, cols), p) // id 1: at the end of a contraction
		s.Output("epilogue", h)
		return s.Add(s.SumAll(y), meanSquare(s, s.Add(h, y)))
	})
	all := run(t, m, setup{threads: 1})
	for _, target := range []string{"cpu:x86-64-v3", "cpu:x86-64-v4"} {
		for _, b := range []compile.Budget{{}, {Min: true}} {
			o := run(t, m, setup{Options: compile.Options{Target: target, Budget: b}, threads: 3})
			same(t, all.steps, o.steps)
			same(t, all.steps, o.again(setup{threads: 16}))
		}
	}
	// By the definition (docs/numerics.md), element by element.
	for step, st := range all.steps {
		for id, name := range []string{"alone", "epilogue"} {
			got := zeros(st[name])
			for r := range rows {
				for c := range cols {
					e := r*cols + c
					w := scalar.Philox4x32([4]uint32{uint32((e>>6)*16 + e&15), uint32(id), uint32(step), 0}, [2]uint32{11, 0})
					drop := w[(e>>4)&3] < uint32(math.Floor(p*(1<<32)))
					require.Equal(t, drop, got[e], "%s step %d (%d, %d)", name, step, r, c)
				}
			}
		}
	}
}

// TestP009: with dropout, remat stopped saving memory, since the masks of all layers were kept
// (jax-ml/jax#17982). A mask is drawn again, never kept because its op is random.
func TestP009(t *testing.T) {
	const d, B = 64, 64
	for _, b := range []compile.Budget{{}, {Min: true}} {
		with := planned(t, mlp(t, 8, d, B, 0.1), compile.Options{Budget: b})
		without := planned(t, mlp(t, 8, d, B, 0), compile.Options{Budget: b})
		assert.LessOrEqual(t, with.Report.ArenaBytes-without.Report.ArenaBytes, int64(4*d*B), "more than one layer's mask")
		o := &outcome{t: t, p: with}
		for _, v := range o.saved() {
			assert.Equal(t, dtype.F32, v.Type.DType, "%s of %s is kept", v.Type, v.Op.Loc)
			assert.NotContains(t, []string{"dropout", "rng_bits", "uniform", "bernoulli"}, v.Op.Name(), "a draw is kept")
		}
	}
	m := mlp(t, 8, d, B, 0.1)
	same(t, run(t, m, setup{}).steps, run(t, m, under(t, "full")).steps)
}

// TestP010: the recomputed dropout of ONNX Runtime's training had another seed than the original
// (microsoft/onnxruntime#19715). A clone has its original's id, two originals never share one, and the
// verifier holds both.
func TestP010(t *testing.T) {
	m := mlp(t, 4, 32, 64, 0.5)
	ids := map[int64]bool{}
	m.Module.Func("step").Body.Walk(func(op *ir.Op) {
		if op.Name() == "dropout" {
			assert.False(t, ids[op.Attrs.Int("rng")], "two dropouts share an id")
			ids[op.Attrs.Int("rng")] = true
		}
	})
	require.Len(t, ids, 4)
	table := ops.Table()
	random := func() (*ir.Module, *ir.Block, *ir.Op) {
		mod := ir.NewModule("m")
		f := mod.NewFunc("step")
		x := f.Body.AddParam("x", ir.T(dtype.F32, 8), ir.A("role", ir.RoleInput))
		key := f.Body.AddParam("key", ir.T(dtype.Key), ir.A("role", ir.RoleKey))
		op := ir.NewBuilder(table, f.Body, ir.Loc{Layer: "layers.0.drop"}).Multi("dropout", []*ir.Value{x, key}, nil, ir.A("p", 0.5), ir.A("rng", 7))
		return mod, f.Body, op
	}
	clone := func(b *ir.Block, op *ir.Op, attrs ir.Attrs) *ir.Op {
		c := b.Func.NewOp(op.Def, op.Operands, []ir.Type{op.Out(0)}, attrs, nil, op.Loc.With("remat"))
		b.Append(c)
		return c
	}
	mod, b, op := random()
	clone(b, op, op.Attrs).Remat = op
	require.NoError(t, ir.Verify(mod))

	mod, b, op = random()
	clone(b, op, op.Attrs.Set("rng", 8)).Remat = op
	e := diag.As(ir.Verify(mod))
	require.NotNil(t, e)
	assert.Contains(t, e.Message, "(V6)")
	assert.Equal(t, "layers.0.drop", e.Layer)

	for _, id := range []int64{7, 0} {
		mod, b, op = random()
		op.Attrs = op.Attrs.Set("rng", id)
		clone(b, op, op.Attrs)
		e = diag.As(ir.Verify(mod))
		require.NotNil(t, e)
		assert.Contains(t, e.Message, "(V7)")
	}
}

// TestP013: checkpointing that must keep RNG state could not run inside a captured graph, which has no host to
// ask for a seed (pytorch/pytorch#162504). The program is such a graph: all that changes between replays is
// the step number.
func TestP013(t *testing.T) {
	m := mlp(t, 4, 32, 64, 0.5)
	all := run(t, m, setup{})
	least := run(t, m, smallest())
	grads := map[string]bool{}
	for i := range int64(3) {
		want, got := all.again(setup{steps: 1, from: i}), least.again(setup{steps: 1, from: i})
		same(t, want, got)
		grads[string(got[0]["grad.layers.0.fc1.w"])] = true
	}
	assert.Len(t, grads, 3, "two replays drew the same numbers")
}

// TestP015: keeping RNG state had no effect on a device whose generator was another one than the host's
// (pytorch/xla#4690). No op of the table has a generator: every random one reads a key, which is a value, so a draw
// is the same wherever it is made. Here a second draw is made by another kernel, with another vector width.
func TestP015(t *testing.T) {
	for _, d := range ops.Table().All() {
		names := []string{}
		for _, a := range d.Attrs {
			names = append(names, a.Name)
		}
		assert.NotContains(t, names, "device", d.Name)
		assert.NotContains(t, names, "seed", d.Name)
		if slices.Contains(names, "rng") {
			assert.True(t, slices.Contains(d.Operands, "key") || slices.Contains(d.Operands, "key?"), "%s draws without a key", d.Name)
		}
	}
	m := trained(t, "two", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{48, 64}, nn.Normal01)
		a := s.In("host").Dropout(s.Linear("a", x, 64), 0.4)
		b := s.In("gpu").Dropout(s.Linear("b", s.Tanh(a), 64), 0.4)
		s.Output("a", a)
		s.Output("b", b)
		return meanSquare(s, s.Linear("c", s.Tanh(b), 64))
	})
	all := run(t, m, setup{Options: compile.Options{Target: "cpu:x86-64-v3"}})
	least := run(t, m, setup{Options: compile.Options{Target: "cpu:x86-64-v4", Budget: compile.Budget{Min: true}}})
	same(t, all.steps, least.steps)
	assert.NotEqual(t, zeros(all.steps[0]["a"]), zeros(all.steps[0]["b"]), "two dropouts draw the same mask")
}

package reports

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/planner"
)

// Memory of this target is the host's, so that nothing is gained by moving a value there: asking for it is an error. What
// the planner does where there is a link is held on graphs.

func tableRows() []string {
	var out []string
	for _, d := range ops.Table().All() {
		out = append(out, d.Name)
	}
	return out
}

// refused holds a rule that offloads to an error that says why.
func refused(t testing.TB, m *frontendModel, rule string) {
	t.Helper()
	_, err := tryPlan(m, under(t, "", rule).Options)
	e := diag.As(err)
	require.NotNil(t, e, rule)
	assert.Equal(t, "offload", e.Code)
	assert.Contains(t, e.Message, "moving a value there frees nothing")
	assert.NotEmpty(t, e.Layer)
	assert.NotEmpty(t, e.Hint)
}

// TestP047: offloading took a square tensor and its transpose for one, since they share storage, and gradients were wrong
// (modelscope/ms-swift#10157). A transpose is read by its own strides, from one array that is kept once.
func TestP047(t *testing.T) {
	m := trained(t, "transpose", func(s *nn.Scope) *nn.Tensor {
		w := s.Param("w", []int64{4, 4}, nn.Normal(0.5))
		a := nn.Name(s.MatMul(s.Input("x", dtype.F32, []int64{4, 4}, nn.Normal01), w), "a")
		b := s.Transpose(a, 1, 0)
		return s.In("loss").SumAll(s.MatMul(s.MatMul(a, b), a)) // both are read in backward
	})
	all, _ := exact(t, m)
	n := int64(0)
	for _, v := range all.saved() {
		if strings.HasPrefix(v.Op.Loc.Layer, "transpose") && v.Type.Len() == 16 && v.Attrs.Str("name") == "a" {
			n += v.Type.Bytes()
		}
		assert.NotEqual(t, "transpose", v.Op.Name(), "the transpose is kept as well")
	}
	assert.EqualValues(t, 64, n)
	refused(t, m, "must offload value=a")
}

// tower is a chain of n forward ops whose results a backward chain reads, the last first: values of b bytes, forward ops of cost
// c. A link of one byte a unit of cost each way, if linked.
func tower(n int, b, c int64, linked bool) *planner.Problem {
	p := &planner.Problem{Values: []planner.Value{{Name: "x", Resident: true}}}
	add := func(cost int64, in ...int) int {
		p.Values = append(p.Values, planner.Value{Bytes: b})
		p.Ops = append(p.Ops, planner.Op{Cost: cost, Det: planner.DetExact, Inputs: in, Outputs: []int{len(p.Values) - 1}})
		return len(p.Values) - 1
	}
	chain := []int{0}
	for range n {
		chain = append(chain, add(c, chain[len(chain)-1]))
	}
	back := chain[n]
	for i := n - 1; i >= 0; i-- {
		back = add(c, back, chain[i])
	}
	p.Values[back].Output = true
	if linked {
		p.Offload = &planner.Offload{BytesPerNsOut: 1, BytesPerNsIn: 1, HostBytes: 1 << 40}
	}
	return p
}

// job is a copy that an engine has under way.
type job struct {
	from, to []byte
	done     int
	after    *job // starts when this one has ended
}

func (j *job) ended() bool { return j.done == len(j.from) }

// device carries a plan with transfers out on real bytes: one memory in which everything lies where the plan says,
// and an engine for each direction of the link, which copies as slowly as the link is while ops run. Memory that the plan
// gives up is filled with poison at once.
type device struct {
	p             *planner.Problem
	plan          *planner.Plan
	memory        []byte
	outgoing, in  []*job
	careless      bool // memory is taken back when the copy has begun
	spoiled       bool // an op read something else than what was computed
	moved, placed int
}

const poison = 0xff

func (d *device) at(pl planner.Placement) []byte { return d.memory[pl.Offset : pl.Offset+pl.Bytes] }

// tick is one unit of time: each engine copies what the link takes in it, in the order of its jobs.
func (d *device) tick() {
	for _, e := range []struct {
		jobs  []*job
		speed float64
	}{{d.outgoing, d.p.Offload.BytesPerNsOut}, {d.in, d.p.Offload.BytesPerNsIn}} {
		left := max(1, int(e.speed))
		for _, j := range e.jobs {
			if j.after != nil && !j.after.ended() {
				break
			}
			for ; left > 0 && !j.ended(); left-- {
				j.to[j.done] = j.from[j.done]
				j.done++
			}
		}
	}
}

func (d *device) wait(j *job) {
	for !j.ended() {
		d.tick()
	}
}

// run carries the plan out. An op's result is a function of its number and its operands; what one reads is held against
// want, by value.
func (d *device) run(want [][]byte) {
	placement := map[[2]int]planner.Placement{}
	d.memory = bytes.Repeat([]byte{poison}, int(d.plan.ArenaBytes))
	for _, pl := range d.plan.Offsets {
		placement[[2]int{pl.Value, pl.Start}] = pl
	}
	cur := map[int]planner.Placement{} // where a value is
	gone, back := make([]*job, len(d.plan.Transfers)), make([]*job, len(d.plan.Transfers))
	wipe := func(v int) {
		b := d.at(cur[v])
		for i := range b {
			b[i] = poison
		}
		delete(cur, v)
	}
	for pos, i := range d.plan.Order {
		for k, t := range d.plan.Transfers {
			if t.Free == pos && !d.careless {
				d.wait(gone[k])
				wipe(t.Value)
			}
			if t.In == pos {
				cur[t.Value] = placement[[2]int{t.Value, pos}]
				back[k] = &job{from: gone[k].to, to: d.at(cur[t.Value]), after: gone[k]}
				d.in = append(d.in, back[k])
			}
			if t.Use == pos {
				d.wait(back[k])
			}
		}
		op := &d.p.Ops[i]
		var read [][]byte
		for _, v := range op.Inputs {
			b := want[v] // of a resident value, which lies elsewhere
			if !d.p.Values[v].Resident {
				b = d.at(cur[v])
				d.spoiled = d.spoiled || !bytes.Equal(b, want[v])
			}
			read = append(read, b)
		}
		for _, v := range op.Outputs {
			cur[v] = placement[[2]int{v, pos}]
			d.placed++
			copy(d.at(cur[v]), computed(i, v, int(d.p.Values[v].Bytes), read))
		}
		for range op.Cost {
			d.tick()
		}
		for v, pl := range cur {
			if pl.End == pos && !d.p.Values[v].Output && !slices.ContainsFunc(d.plan.Transfers, func(t planner.Transfer) bool { return t.Value == v && t.Out <= pos && pos < t.Free }) {
				wipe(v)
			}
		}
		for k, t := range d.plan.Transfers {
			if t.Out == pos {
				gone[k] = &job{from: d.at(cur[t.Value]), to: make([]byte, d.p.Values[t.Value].Bytes)}
				d.outgoing = append(d.outgoing, gone[k])
				d.moved++
				if d.careless {
					wipe(t.Value)
				}
			}
		}
	}
	for v := range d.p.Values {
		if d.p.Values[v].Output {
			d.spoiled = d.spoiled || !bytes.Equal(d.at(cur[v]), want[v])
		}
	}
}

// computed is result v of op i: n bytes that depend on all that it reads.
func computed(i, v, n int, read [][]byte) []byte {
	h := uint64(i)<<32 | uint64(v)
	for _, b := range read {
		for _, x := range b {
			h = (h ^ uint64(x)) * 0x100000001b3
		}
	}
	out := make([]byte, n)
	for k := range out {
		h = h*6364136223846793005 + 1442695040888963407
		out[k] = byte(h >> 56)
	}
	return out
}

// TestP108: offloading on streams gave NaN: memory was reused while a copy was still under way (meta-pytorch/torchtune#1867). A
// copy takes time on the plan's clock, and memory is free when it has ended: the checker runs its own clock and counts what a
// slow link holds. Carried out on real bytes, with engines as slow as the link and poison in all memory that is given up, a
// plan reads what was computed, and nothing else; if memory is taken back before the copy has ended, it does not.
func TestP108(t *testing.T) {
	refused(t, mlp(t, 4, 32, 64, 0.5), "must offload layer=layers.*")
	p := tower(8, 100, 10, true)
	all := planner.SaveAll(p)
	for _, slow := range []float64{10, 1, 0.1} {
		p.Offload.BytesPerNsOut, p.Offload.BytesPerNsIn = slow, slow
		plan, err := planner.Solve(context.Background(), p, planner.Options{Budget: all.PeakBytes * 6 / 10, Steps: 20_000})
		require.NoError(t, err)
		rep, err := planner.Check(p, plan, all.PeakBytes*6/10)
		require.NoError(t, err, "link of %v bytes a unit", slow)
		assert.LessOrEqual(t, rep.PeakBytes, all.PeakBytes*6/10)
		for _, x := range plan.Transfers {
			assert.Less(t, x.Out, x.Use)
			assert.LessOrEqual(t, x.Out, x.Free)
			assert.LessOrEqual(t, x.Free, x.In)
			assert.LessOrEqual(t, x.In, x.Use)
			// Memory that is taken back before its copy can have ended is no plan.
			early := *plan
			early.Transfers = append([]planner.Transfer{}, plan.Transfers...)
			for i := range early.Transfers {
				early.Transfers[i].Free = early.Transfers[i].Out - 1
			}
			_, err := planner.Check(p, &early, -1)
			assert.Error(t, err)
		}
	}
	moved, again := 0, 0
	for _, c := range []struct {
		n          int
		cost       int64
		speed      float64
		percentage int64
	}{{4, 300, 1, 80}, {8, 100, 1, 60}, {8, 1000, 1, 70}, {8, 40, 4, 60}, {12, 200, 1, 50}, {12, 200, 2, 40}, {16, 100, 3, 50}, {12, 20, 1, 50}, {16, 60, 1, 40}} {
		p := tower(c.n, 100, c.cost, true)
		p.Offload.BytesPerNsOut, p.Offload.BytesPerNsIn = c.speed, c.speed
		budget := planner.SaveAll(p).PeakBytes * c.percentage / 100
		plan, err := planner.Solve(context.Background(), p, planner.Options{Budget: budget, Steps: 20_000, Layout: true})
		require.NoError(t, err)
		_, err = planner.Check(p, plan, budget)
		require.NoError(t, err)
		want := make([][]byte, len(p.Values))
		want[0] = []byte("x")
		for i := range p.Ops { // everything once, in the order of the graph
			var read [][]byte
			for _, v := range p.Ops[i].Inputs {
				read = append(read, want[v])
			}
			for _, v := range p.Ops[i].Outputs {
				want[v] = computed(i, v, int(p.Values[v].Bytes), read)
			}
		}
		d := &device{p: p, plan: plan}
		d.run(want)
		assert.False(t, d.spoiled, "%+v: %v", c, plan.Transfers)
		moved, again = moved+d.moved, again+d.placed-len(p.Ops)
		if d.moved > 0 {
			careless := &device{p: p, plan: plan, careless: true}
			careless.run(want)
			assert.True(t, careless.spoiled, "nothing shows that memory was taken back too early")
		}
	}
	assert.Greater(t, moved, 20)
	assert.Positive(t, again, "no plan moves and computes again")
}

// TestP111: a policy that offloads did nothing, and did not say so (openxla/xla#17541). Here it is an error that says why; where
// there is a link, what is moved is counted, and device memory is lower by it.
func TestP111(t *testing.T) {
	m := trained(t, "residual", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			x = nn.Name(l.Add(x, l.Linear("out", l.Gelu(l.Linear("fc", x, 64)), 32)), "residual")
		}
		return meanSquare(s, x)
	})
	for _, rule := range []string{"must offload layer=layers.*", "prefer offload value=residual", "must offload value=residual"} {
		refused(t, m, rule)
	}
	p := tower(8, 100, 1000, true)
	all := planner.SaveAll(p)
	for _, v := range []int{1, 2, 3} {
		p.Values[v].Policy = planner.MustOffload
	}
	plan, err := planner.Solve(context.Background(), p, planner.Options{Steps: 20_000})
	require.NoError(t, err)
	moved := map[int]bool{}
	for _, x := range plan.Transfers {
		moved[x.Value] = true
	}
	assert.True(t, moved[1] && moved[2] && moved[3], "%v", plan.Transfers)
	assert.EqualValues(t, 100*len(moved), plan.HostBytes, "the sum of the sizes")
	assert.Less(t, plan.PeakBytes, all.PeakBytes)
}

// TestP112: a plan of what to offload beat offloading everything, and declined where all fits (deepspeedai/DeepSpeed#8255). The
// planner moves nothing that fits, and below that the cheapest by time of recomputation or of the copy; the measured peak of a
// program is the planned one, so that planning with it changes nothing.
func TestP112(t *testing.T) {
	p := tower(8, 100, 1000, true) // recomputing costs 1000, a copy takes 100 each way beside the compute
	all := planner.SaveAll(p)
	plan, err := planner.Solve(context.Background(), p, planner.Options{Budget: all.PeakBytes, Steps: 20_000})
	require.NoError(t, err)
	assert.Empty(t, plan.Transfers, "it fits, and is moved")
	assert.Equal(t, plan.BaseCost, plan.Cost)
	tight := all.PeakBytes * 9 / 10
	plan, err = planner.Solve(context.Background(), p, planner.Options{Budget: tight, Steps: 20_000})
	require.NoError(t, err)
	assert.NotEmpty(t, plan.Transfers, "a copy is cheaper than running again")
	assert.Less(t, len(plan.Transfers), 8, "no more than must be")
	dry, err := planner.Solve(context.Background(), tower(8, 100, 1000, false), planner.Options{Budget: tight, Steps: 20_000})
	require.NoError(t, err)
	assert.Less(t, plan.Cost, dry.Cost)
	slow := tower(8, 100, 10, true) // now running again is the cheaper
	slow.Offload.BytesPerNsOut, slow.Offload.BytesPerNsIn = 0.001, 0.001
	plan, err = planner.Solve(context.Background(), slow, planner.Options{Budget: tight, Steps: 20_000})
	require.NoError(t, err)
	assert.Empty(t, plan.Transfers)

	m := mlp(t, 4, 32, 64, 0.5)
	least := run(t, m, smallest()) // its peak was measured, and is the promise
	again := planned(t, m, compile.Options{Budget: compile.Budget{Bytes: least.p.Report.ArenaBytes}})
	assert.Equal(t, least.p.Report.CostNs, again.Report.CostNs)
	assert.Equal(t, least.p.Report.ArenaBytes, again.Report.ArenaBytes)
}

package planner

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

func never0() bool { return false }

// bestCut returns the best bound over the cuts at every node, with and without
// branching, and two in a row. possible is false if a cut proves that no plan fits.
func bestCut(m *model, budget int64) (lower int64, possible bool) {
	k := newKin(m)
	for b := int32(0); b < int32(m.n); b++ {
		c := newCut(m, k, b, budget)
		r := c.maximise(0, 24)
		if !r.possible {
			return 0, false
		}
		lower = max(lower, r.lower)
		i := c.integer(1, 1<<62, 200, never0)
		lower = max(lower, i.lower)
		if d, exact := c.programme(max(r.over.p, 1), r.lower, 1<<62, 1<<20, never0); exact {
			lower = max(lower, d.lower)
			if i.cost < d.cost || d.cost < 1<<62 && d.cost != d.lower {
				return 1 << 62, true // the callers say what is wrong
			}
		}
		if m.n <= pathTested() {
			lower = max(lower, newPathCut(m, k, b, budget).run(0.1, 1<<60, 1<<20, never0))
		}
	}
	return lower, true
}

// pathTested is up to how many nodes tests look at two cuts in a row.
func pathTested() int {
	if os.Getenv("REPRISE_LONG") != "" {
		return 12
	}
	return 5
}

// TestBoundsHold makes random legal plans, asks Check for their peak and cost,
// and holds the bounds for that peak against the cost.
func TestBoundsHold(t *testing.T) {
	plans := 0
	for seed := uint64(0); seed < 600; seed++ {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := randomProblem(rng, 2+rng.IntN(12))
		m := newModel(p)
		for try := 0; try < 6; try++ {
			order := append([]int(nil), p.order()...)
			for k := rng.IntN(8); k > 0; k-- {
				at := rng.IntN(len(order) + 1)
				op := rng.IntN(len(p.Ops))
				with := append(append(append([]int(nil), order[:at]...), op), order[at:]...)
				if _, err := Check(p, &Plan{Order: with}, -1); err == nil {
					order = with
				}
			}
			rep, err := Check(p, &Plan{Order: order}, -1)
			if err != nil {
				t.Fatal(err)
			}
			plans++
			if f := newSearch(t.Context(), p, Options{}).leastBytes(); f > rep.PeakBytes {
				t.Fatalf("seed %d: no plan is said to need less than %d bytes, this one needs %d: %v", seed, f, rep.PeakBytes, order)
			}
			lower, possible := bestCut(m, rep.PeakBytes)
			if !possible || m.base+lower > rep.Cost {
				t.Fatalf("seed %d: bound %d (possible %v) for budget %d, but a plan costs %d: %v", seed, m.base+lower, possible, rep.PeakBytes, rep.Cost, order)
			}
		}
	}
	t.Logf("%d plans", plans)
}

// simpleProblem makes a small problem without views and overwrites of shared
// memory, for which the exhaustive search is exact.
func simpleProblem(rng *rand.Rand, n int) *Problem {
	p := &Problem{Name: "simple"}
	for i := 0; i < n; i++ {
		o := Op{Cost: 1 + rng.Int64N(9), Det: DetExact, Outputs: []int{len(p.Values)}}
		if rng.IntN(8) == 0 {
			o.Det = DetDecides
		}
		if rng.IntN(8) == 0 {
			o.Workspace = rng.Int64N(4)
		}
		if i > 0 {
			o.Inputs = append(o.Inputs, i-1-min(rng.IntN(i), rng.IntN(i)))
			if j := rng.IntN(i); j != o.Inputs[0] && rng.IntN(2) == 0 {
				o.Inputs = append(o.Inputs, j)
			}
			if rng.IntN(3) == 0 {
				o.InPlace = [][2]int{{o.Inputs[0], i}}
			}
		}
		p.Values = append(p.Values, Value{Bytes: 1 + rng.Int64N(6), Output: rng.IntN(7) == 0})
		p.Ops = append(p.Ops, o)
	}
	return p
}

// TestExhaustive compares bounds and plans with the optimum over all plans.
func TestExhaustive(t *testing.T) {
	solved, tight := 0, 0
	for seed := uint64(0); seed < 500; seed++ {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := simpleProblem(rng, 3+rng.IntN(6))
		m := newModel(p)
		low, high := m.footprint(), SaveAll(p).PeakBytes
		for budget := low; budget <= high; budget += max(1, (high-low)/3) {
			seq, opt, known := exact(m, budget, 1<<20, never0)
			if !known {
				t.Fatalf("seed %d: the exhaustive search gave up", seed)
			}
			lower, possible := bestCut(m, budget)
			plan, err := Solve(context.Background(), p, Options{Budget: budget, Steps: 3000})
			var inf *InfeasibleError
			if seq == nil {
				if err == nil {
					t.Fatalf("seed %d budget %d: no plan exists, Solve gives %v", seed, budget, plan.Order)
				}
				continue
			}
			if errors.As(err, &inf) {
				t.Errorf("seed %d budget %d: a plan of cost %d exists, Solve finds none: %v", seed, budget, opt, err)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if !possible || m.base+lower > opt {
				t.Fatalf("seed %d budget %d: bound %d (possible %v), optimum %d", seed, budget, m.base+lower, possible, opt)
			}
			if plan.Cost < opt || plan.LowerBound > opt {
				t.Fatalf("seed %d budget %d: plan %d, bound %d, optimum %d", seed, budget, plan.Cost, plan.LowerBound, opt)
			}
			if rep, err := Check(p, &Plan{Order: m.emit(seq)}, budget); err != nil || rep.Cost != opt {
				t.Fatalf("seed %d budget %d: the optimal sequence: %v, cost %d, want %d", seed, budget, err, rep.Cost, opt)
			}
			solved++
			if plan.Cost == opt {
				tight++
			}
		}
	}
	if tight < solved {
		t.Errorf("%d of %d plans are optimal", tight, solved)
	}
}

// TestTwoCuts holds the bounds of two cuts in a row against the optimum over all plans: of graphs with pinned ops,
// workspaces and several outputs, and of chains.
func TestTwoCuts(t *testing.T) {
	seeds := uint64(60)
	if os.Getenv("REPRISE_LONG") != "" {
		seeds = 3000
	}
	n, raised := 0, 0
	for seed := uint64(0); seed < seeds; seed++ {
		rng := rand.New(rand.NewPCG(seed, 77))
		p := simpleProblem(rng, 5+rng.IntN(6))
		if seed%2 == 0 {
			p = chainProblem(rng, 3+rng.IntN(3), int(seed/2%4))
		}
		if seed%3 == 0 { // several outputs
			for i := range p.Ops {
				if rng.IntN(3) == 0 && len(p.Ops[i].InPlace) == 0 {
					p.Values = append(p.Values, Value{Bytes: 1 + rng.Int64N(4)})
					v := len(p.Values) - 1
					p.Ops[i].Outputs = append(p.Ops[i].Outputs, v)
					for j := i + 1; j < len(p.Ops); j++ {
						if rng.IntN(3) == 0 {
							p.Ops[j].Inputs = append(p.Ops[j].Inputs, v)
						}
					}
				}
			}
		}
		if p.Validate() != nil {
			continue
		}
		m := newModel(p)
		if !m.exact || m.n > exactLimit || len(m.size) > exactLimit {
			continue
		}
		low, high := m.footprint(), SaveAll(p).PeakBytes
		k := newKin(m)
		for budget := low; budget <= high; budget += max(1, (high-low)/3) {
			seq, opt, known := exact(m, budget, 1<<18, never0)
			if !known || seq == nil {
				continue
			}
			for b := int32(0); b < int32(m.n); b++ {
				n++
				l := newPathCut(m, k, b, budget).run(0.1, 1<<60, 1<<18, never0)
				if m.base+l > opt {
					t.Fatalf("seed %d budget %d b %d: bound %d optimum %d", seed, budget, b, m.base+l, opt)
				}
				if i := newCut(m, k, b, budget).integer(1, 1<<62, 2000, never0); i.lower < l {
					raised++
				}
			}
		}
	}
	t.Logf("%d bounds, %d of them above that of one cut", n, raised)
	if raised*10 < n {
		t.Errorf("%d of %d bounds are above that of one cut", raised, n)
	}
}

// TestProgramme compares the integer version of cuts, by dynamic programming, with all choices of what to keep.
func TestProgramme(t *testing.T) {
	n := 0
	for seed := uint64(0); seed < 400; seed++ {
		rng := rand.New(rand.NewPCG(seed, 12))
		p := randomProblem(rng, 3+rng.IntN(9))
		if seed%2 == 0 {
			p = chainProblem(rng, 3+rng.IntN(3), int(seed/2%4))
		}
		m := newModel(p)
		low, high := m.footprint(), SaveAll(p).PeakBytes
		k := newKin(m)
		for b := int32(0); b < int32(m.n); b++ {
			budget := low + rng.Int64N(high-low+1)
			c := newCut(m, k, b, budget)
			if len(c.mems) > 10 || c.free < 0 {
				continue
			}
			best := int64(1 << 62)
			fix := make([]int8, len(c.mems))
			for pick := 0; pick < 1<<len(fix); pick++ {
				room := c.free
				for i, e := range c.mems {
					fix[i] = -1
					if pick>>i&1 != 0 {
						fix[i] = 1
						room -= m.size[e.id]
					}
				}
				if room < 0 {
					continue
				}
				if pt, ok := c.priced(0, fix); ok {
					best = min(best, pt.cost)
				}
			}
			price := 1 + rng.Int64N(c.maxP)
			res, exact := c.programme(price, 0, 1<<62, 1<<20, never0)
			if best == 1<<62 {
				if res.cost < best {
					t.Fatalf("seed %d b %d: no choice is possible within %d bytes, it says %d", seed, b, budget, res.cost)
				}
				continue
			}
			if !exact {
				t.Fatalf("seed %d b %d: it gave up", seed, b)
			}
			n++
			if res.lower != best || res.cost != best || len(res.kept) != 1 {
				t.Fatalf("seed %d b %d budget %d: bound %d cost %d, of all choices %d", seed, b, budget, res.lower, res.cost, best)
			}
			room := c.free
			for i, e := range c.mems {
				fix[i] = -1
				if res.kept[0][e.id] {
					fix[i] = 1
					room -= m.size[e.id]
				}
			}
			if pt, ok := c.priced(0, fix); !ok || room < 0 || pt.cost != best {
				t.Fatalf("seed %d b %d budget %d: what it keeps costs %d (possible %v) and leaves %d bytes, want %d", seed, b, budget, pt.cost, ok, room, best)
			}
			if res, exact := c.programme(price, 0, best, 1<<20, never0); !exact || res.lower != best || res.kept != nil {
				t.Fatalf("seed %d b %d: none is below %d, it says %d", seed, b, best, res.lower)
			}
			if res, exact := c.programme(price, best, best+1, 1<<20, never0); !exact || res.lower != best || res.cost != best {
				t.Fatalf("seed %d b %d: %d is the only cost below %d, it says %d", seed, b, best, best+1, res.cost)
			}
			if res, exact := c.programme(price, 0, 1<<62, 0, never0); exact && res.work > 0 || res.lower > best {
				t.Fatalf("seed %d b %d: bound %d after no work, best %d", seed, b, res.lower, best)
			}
		}
	}
	if n < 1000 {
		t.Errorf("%d cuts", n)
	}
}

// TestEqualLayers: where layers are alike there are many choices that cost the same, of which the programme looks at one.
func TestEqualLayers(t *testing.T) {
	const layers = 40
	p := &Problem{Name: "layers"}
	op := func(cost, bytes int64, in ...int) int {
		p.Values = append(p.Values, Value{Bytes: bytes})
		p.Ops = append(p.Ops, Op{Cost: cost, Inputs: in, Outputs: []int{len(p.Values) - 1}, Det: DetExact})
		return len(p.Values) - 1
	}
	x := op(10, 8)
	var kept [][]int
	for range layers {
		a := op(17, 8, x)
		b := op(29, 5, a)
		c := op(3, 3, b)
		y := op(5, 8, x, c)
		kept = append(kept, []int{x, a, b, c})
		x = y
	}
	g := op(10, 8, x)
	top := len(p.Ops) - 1
	for i := layers - 1; i >= 0; i-- {
		g = op(40, 8, append(kept[i], g)...)
	}
	p.Values[g].Output = true
	m := newModel(p)
	peak := SaveAll(p).PeakBytes
	beaten := 0
	for share := int64(30); share <= 70; share += 4 {
		c := newCut(m, newKin(m), int32(top), peak*share/100)
		r := c.maximise(0, 24)
		branched := c.integer(r.over.p, 1<<62, 500, never0)
		res, exact := c.programme(r.over.p, r.lower, 1<<62, 1<<18, never0)
		if !exact || res.lower != res.cost || res.cost > branched.cost || res.lower < branched.lower {
			t.Errorf("%d %%: exact %v, bound %d, cost %d; branching is between %d and %d", share, exact, res.lower, res.cost, branched.lower, branched.cost)
		}
		if branched.lower < res.lower {
			beaten++
		}
	}
	if beaten < 5 {
		t.Errorf("branching proves as much at all but %d of 11 budgets: this is no example", beaten)
	}
}

// everyOrder calls f with every sequence of n ops that runs each at least once
// and all of them at most extra times more.
func everyOrder(n, extra int, f func(order []int)) {
	runs := make([]int, n)
	var order []int
	var walk func(missing, extra int)
	walk = func(missing, extra int) {
		if missing == 0 {
			f(order)
		}
		for i := range runs {
			if runs[i] > 0 && extra == 0 {
				continue
			}
			m, e := missing, extra
			if runs[i] == 0 {
				m--
			} else {
				e--
			}
			runs[i]++
			order = append(order, i)
			walk(m, e)
			order = order[:len(order)-1]
			runs[i]--
		}
	}
	walk(n, extra)
}

// TestEnumerated lets Check judge every sequence with up to two recomputations
// of small problems with everything in them: views, overwrites, optional reuse,
// several outputs, workspaces, effects, pinned ops. At the peak of each plan the
// bounds must hold, and a plan as cheap as the cheapest must be found.
func TestEnumerated(t *testing.T) {
	seeds, ops := uint64(250), 4
	if os.Getenv("REPRISE_LONG") != "" {
		seeds, ops = 4000, 5
	}
	budgets, best := 0, 0
	for seed := uint64(0); seed < seeds; seed++ {
		rng := rand.New(rand.NewPCG(seed, 16))
		p := randomProblem(rng, 2+rng.IntN(ops-1))
		cheapest := map[int64]int64{} // by peak
		everyOrder(len(p.Ops), 2, func(order []int) {
			rep, err := Check(p, &Plan{Order: order}, -1)
			if err != nil {
				return
			}
			if c, ok := cheapest[rep.PeakBytes]; !ok || rep.Cost < c {
				cheapest[rep.PeakBytes] = rep.Cost
			}
		})
		m := newModel(p)
		least := int64(math.MaxInt64)
		for _, budget := range slices.Sorted(maps.Keys(cheapest)) {
			least = min(least, cheapest[budget])
			lower, possible := bestCut(m, budget)
			if !possible || m.base+lower > least {
				t.Fatalf("seed %d budget %d: bound %d (possible %v), a plan costs %d", seed, budget, m.base+lower, possible, least)
			}
			budgets++
			plan, err := Solve(t.Context(), p, Options{Budget: max(budget, 1), Steps: 1000})
			var inf *InfeasibleError
			if errors.As(err, &inf) {
				if inf.LowerBoundBytes > budget {
					t.Fatalf("seed %d: no plan is said to need less than %d bytes, one needs %d", seed, inf.LowerBoundBytes, budget)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if plan.LowerBound > least {
				t.Fatalf("seed %d budget %d: the plan claims a bound of %d, a plan costs %d", seed, budget, plan.LowerBound, least)
			}
			if plan.Cost <= least {
				best++
			}
		}
	}
	t.Logf("%d of %d plans cost no more than the cheapest of all sequences", best, budgets)
	if best*100 < budgets*97 {
		t.Errorf("%d of %d plans cost no more than the cheapest of all sequences", best, budgets)
	}
}

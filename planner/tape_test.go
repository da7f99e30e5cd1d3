package planner

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTape changes sequences at random and compares what each move promised
// with a fresh measurement and with the simulator.
func TestTape(t *testing.T) {
	made := [3]int{}
	for seed := uint64(0); seed < 400; seed++ {
		rng := rand.New(rand.NewPCG(seed, 12))
		p := randomProblem(rng, 2+rng.IntN(30))
		m := newModel(p)
		for x := range m.pair {
			m.pair[x] = nil // reuse is not counted
		}
		sim := newSimulator(m)
		tp := newTape(m, m.order)
		limit := m.footprint()
		excess := tp.excess(limit)
		for step := 0; step < 150; step++ {
			at := int32(rng.IntN(len(tp.seq)))
			switch rng.IntN(3) {
			case 0:
				lo, hi := tp.bounds(at)
				if hi-lo <= 2 {
					continue
				}
				to := lo + 1 + int32(rng.IntN(int(hi-lo-1)))
				if to == at {
					continue
				}
				grown, mem := tp.tryMove(at, to, limit)
				tp.move(at, to, mem)
				excess += grown
				made[0]++
			case 1:
				y := int32(rng.IntN(m.n))
				if len(tp.seq) > 3*m.n || tp.pos[tp.runs[y][0]] >= at || !tp.mayAdd(y, at) {
					continue
				}
				grown, mem, rel := tp.tryAdd(y, at, limit)
				tp.add(y, at, mem, rel)
				excess += grown
				made[1]++
			default:
				if len(tp.runs[tp.node[tp.seq[at]]]) < 2 {
					continue
				}
				grown, ok := tp.tryRemove(at, limit)
				if !ok {
					continue
				}
				tp.remove(at)
				excess += grown
				made[2]++
			}
			seq := tp.nodes()
			_, cost, ok := sim.run(seq)
			if !ok {
				t.Fatalf("seed %d step %d: illegal sequence %v", seed, step, seq)
			}
			_ = cost
			if got := tp.excess(limit); got != excess {
				t.Fatalf("seed %d step %d: promised excess %d, is %d", seed, step, excess, got)
			}
			for k := range seq {
				if sim.mem[k] != tp.mem[k] {
					t.Fatalf("seed %d step %d: memory at %d is %d, the tape says %d: %v", seed, step, k, sim.mem[k], tp.mem[k], seq)
				}
			}
			fresh := newTape(m, seq)
			for k := range seq {
				if fresh.rel[k] != tp.rel[k] {
					t.Fatalf("seed %d step %d: released at %d: %d, want %d", seed, step, k, tp.rel[k], fresh.rel[k])
				}
			}
			if fresh.bias != tp.bias {
				t.Fatalf("seed %d step %d: bias %d, want %d", seed, step, tp.bias, fresh.bias)
			}
		}
	}
	for k, n := range made {
		if n < 1000 {
			t.Errorf("%d moves of kind %d", n, k)
		}
	}
}

// TestChain adds copies with copies of what they read, compares what that promised with the simulator, and takes every
// second one back, which must leave no trace.
func TestChain(t *testing.T) {
	long := 0
	for seed := uint64(0); seed < 800; seed++ {
		r := rand.New(rand.NewPCG(seed, 21))
		m := newModel(randomProblem(r, 2+r.IntN(40)))
		for x := range m.pair {
			m.pair[x] = nil // reuse is not counted
		}
		sim := newSimulator(m)
		limit := m.footprint()
		a := newTaper(m, m.order, limit, seed)
		for step := 0; step < 40 && len(a.t.seq) < 4*m.n; step++ {
			y, at := int32(r.IntN(m.n)), int32(r.IntN(len(a.t.seq)))
			if a.t.pos[a.t.runs[y][0]] >= at || !a.t.mayAdd(y, at) {
				continue
			}
			was, bias, excess := a.t.nodes(), a.t.bias, a.t.excess(limit)
			cost, grown := a.chain(y, at)
			if len(a.added) > 2 {
				long++
			}
			seq := a.t.nodes()
			if _, _, ok := sim.run(seq); !ok {
				t.Fatalf("seed %d step %d: illegal sequence %v", seed, step, seq)
			}
			if a.t.bias != bias+cost || a.t.excess(limit) != excess+grown {
				t.Fatalf("seed %d step %d: promised cost %d and excess %d, are %d and %d", seed, step, cost, grown, a.t.bias-bias, a.t.excess(limit)-excess)
			}
			if step&1 == 0 {
				a.unchain()
				if seq = a.t.nodes(); !slices.Equal(seq, was) || a.t.bias != bias {
					t.Fatalf("seed %d step %d: taken back: %v, want %v", seed, step, seq, was)
				}
			}
			fresh := newTape(m, seq)
			if !slices.Equal(fresh.mem, a.t.mem) || !slices.Equal(fresh.rel, a.t.rel) {
				t.Fatalf("seed %d step %d: memory %v, want %v", seed, step, a.t.mem, fresh.mem)
			}
		}
	}
	if long < 200 {
		t.Errorf("%d chains of more than two copies", long)
	}
}

// TestStill says that what follows a cut moves instances only, as long as it is told to: not one is added or removed.
func TestStill(t *testing.T) {
	m := newModel(randomProblem(rand.New(rand.NewPCG(5, 22)), 40))
	a := newTaper(m, append(slices.Clone(m.order), m.order[0]), m.footprint(), 1)
	want := slices.Sorted(slices.Values(a.t.nodes()))
	a.still, a.deep = true, true
	a.run(20_000, 1, 1, 1e6, 1e3, never0)
	if got := slices.Sorted(slices.Values(a.t.nodes())); !slices.Equal(got, want) || slices.Equal(a.t.nodes()[:m.n], m.order) {
		t.Errorf("instances %v, want %v in another order", got, want)
	}
}

// TestPhases holds the sequences that cuts lead to against the simulator: legal, and of the cost that the cut says.
func TestPhases(t *testing.T) {
	again := 0
	for seed := uint64(0); seed < 400; seed++ {
		r := rand.New(rand.NewPCG(seed, 23))
		p := simpleProblem(r, 4+r.IntN(30))
		m := newModel(p)
		k, sim := newKin(m), newSimulator(m)
		top := SaveAll(p).PeakBytes
		for _, b := range m.order {
			c := newCut(m, k, b, top*7/10)
			res := c.maximise(0, 24)
			if !res.possible || !res.fits {
				continue
			}
			pt, ok := c.at(res.under.p)
			if !ok {
				t.Fatalf("seed %d: a price that had a cut has none", seed)
			}
			seq := c.phases()
			_, cost, ok := sim.run(seq)
			if !ok {
				t.Fatalf("seed %d, cut at %d: illegal sequence %v", seed, b, seq)
			}
			if cost != m.base+pt.cost {
				t.Fatalf("seed %d, cut at %d: cost %d, the cut says %d", seed, b, cost, m.base+pt.cost)
			}
			if len(seq) > m.n {
				again++
			}
		}
	}
	if again < 100 {
		t.Errorf("only %d cuts computed anything again", again)
	}
}

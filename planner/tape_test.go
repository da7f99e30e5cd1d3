package planner

import (
	"math/rand/v2"
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

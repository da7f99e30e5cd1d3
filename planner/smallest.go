package planner

import (
	"cmp"
	"math"
	"slices"
)

// sized is a sequence and its peak.
type sized struct {
	seq  []int32
	peak int64
}

// findSmallest is smallest without what other solvers came upon. The greedy solver finds where to start, and
// annealing goes on from the best of those.
func (s *search) findSmallest() ([]int32, int64) {
	best := sized{peak: math.MaxInt64}
	for _, o := range s.orders {
		o = s.again(o)
		if pk, _, ok := s.sim.run(o); ok && pk < best.peak {
			best = sized{o, pk}
		}
	}
	low, top := s.m.footprint(), min(best.peak, math.MaxInt64/4)
	ideas, ends := tilts, squeezed
	if s.opt.Quick || s.m.n > tapeLimit {
		ideas, ends = 1, 1
	}
	found := make([][]sized, ideas)
	took := make([]int64, ideas)
	s.parallel(ideas, func(k int) { found[k], took[k] = s.tightest(s.m.tilted(k, s.opt.Seed), low, top) })
	var starts []sized
	for k := range found {
		s.steps += took[k]
		starts = append(starts, found[k]...)
	}
	slices.SortStableFunc(starts, func(a, b sized) int { return cmp.Compare(a.peak, b.peak) })
	if len(starts) > 0 && starts[0].peak < best.peak {
		best = starts[0]
	}
	if s.m.n <= 12 && len(s.m.size) <= 14 && len(s.m.must) == 0 {
		for lo, hi := low, best.peak; lo < hi; {
			mid := lo + (hi-lo)/2
			seq, _, known := exact(s.m, mid, 1<<17, s.stopped)
			if !known {
				break
			}
			if seq != nil {
				best, hi = sized{seq, mid}, mid
			} else {
				lo = mid + 1
			}
		}
	}
	if len(starts) == 0 && best.seq != nil {
		starts = []sized{best}
	}
	starts = starts[:min(len(starts), ends)]
	s.parallel(len(starts), func(k int) { starts[k] = s.squeeze(starts[k], low) })
	for _, x := range starts {
		if x.peak < best.peak {
			best = x
		}
	}
	return best.seq, best.peak
}

const (
	tilts    = 4 // ideas of what is dear to compute again
	squeezed = 2 // starts that are annealed
)

// tilted is the model with another idea of what is dear to compute again: 0 is the model itself, in the others
// large differences count less. What the greedy solver drops depends on that, and the smallest peak does not.
func (m *model) tilted(k int, seed uint64) *model {
	if k == 0 {
		return m
	}
	q := *m
	q.bias = slices.Clone(m.bias)
	mean := float64(m.base) / float64(max(m.n, 1))
	r := rng(seed*1000003 + 700 + uint64(k))
	for x := range q.bias {
		c := math.Sqrt(float64(q.bias[x]) * mean)
		if k > 1 {
			c *= 0.5 + r.float()
		}
		q.bias[x] = int64(c)
	}
	return &q
}

// tightest is, for each order, the sequence with the smallest peak of those that the greedy variants find under ever
// smaller limits; and the work that it took.
func (s *search) tightest(m *model, low, top int64) (out []sized, steps int64) {
	sim := newSimulator(m)
	for _, o := range s.orders {
		best := sized{peak: math.MaxInt64}
		for _, v := range greedyVariants {
			lo, hi := low, top
			for hi-lo > (top-low)/128 && steps < 1_500_000 && !s.stopped() {
				mid := lo + (hi-lo)/2
				seq, n := greedily(m, o, mid, v, nil)
				steps += n
				if seq != nil {
					if pk, _, ok := sim.run(seq); ok && pk < hi {
						hi = pk
						if pk < best.peak {
							best = sized{seq, pk}
						}
						continue
					}
				}
				lo = mid + 1
			}
		}
		if best.seq != nil {
			out = append(out, best)
		}
	}
	return out, steps
}

// squeeze anneals towards a limit that is out of reach, or nearly so. Memory over the limit counts at every
// position: the peak alone says nothing of a step that lowers one of several that are as high.
func (s *search) squeeze(from sized, low int64) sized {
	sim := newSimulator(s.m)
	mean := float64(s.m.base) / float64(max(s.m.n, 1))
	for round := uint64(0); round < 4 && from.peak > low && !s.stopped(); round++ {
		a := newAnnealer(s.m, from.seq, max(low, from.peak-max(from.peak/16, 1)), s.opt.Seed*1000003+500+round)
		a.alpha, a.beta = 100, 300
		a.run(min(20_000, int64(80*s.m.n)), 3*mean, 0.03*mean, mix{moveRotate: 3, moveNear: 2, moveRemove: 1, moveAdd: 2, moveSwap: 1}, s.stopped)
		for _, seq := range [][]int32{a.best, a.lowest} {
			if seq == nil {
				continue
			}
			seq = s.again(seq)
			if pk, _, ok := sim.run(seq); ok && pk < from.peak {
				from = sized{seq, pk}
			}
		}
	}
	return from
}

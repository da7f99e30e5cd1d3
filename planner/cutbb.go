package planner

import "container/heap"

// branch is a node of the search over what a cut keeps: some buffers are known
// to be kept, some known not to be.
type branch struct {
	lower int64 // on cost beyond every node once, given the fixings
	p     int64 // price to start from
	depth int32
	split int32 // index in cut.mems on which to branch
	up    *branch
	edge  int32 // the fixing that led here from up: index in cut.mems
	keep  bool
	seq   int32 // order of creation, for ties
}

type branchHeap []*branch

func (h branchHeap) Len() int { return len(h) }
func (h branchHeap) Less(a, b int) bool {
	if h[a].lower != h[b].lower {
		return h[a].lower < h[b].lower
	}
	if h[a].depth != h[b].depth {
		return h[a].depth > h[b].depth
	}
	return h[a].seq < h[b].seq
}
func (h branchHeap) Swap(a, b int) { h[a], h[b] = h[b], h[a] }
func (h *branchHeap) Push(x any)   { *h = append(*h, x.(*branch)) }
func (h *branchHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// integerResult is what a branch and bound over one cut has proven.
type integerResult struct {
	lower int64 // on cost beyond every node once
	evals int
	work  int64
	kept  [][]bool // by buffer: the choices found, each cheaper than the one before
	cost  int64    // of the last of them, beyond every node once
}

// integer tightens the bound of the cut by branching on which buffers are kept,
// with the priced cut as the bound in each branch. It stops when the bound
// reaches enough, or after maxEvals cuts. Every branch is bounded by exact
// arithmetic, so the result holds wherever it stops.
func (c *cut) integer(start int64, enough int64, maxEvals int, stop func() bool) integerResult {
	res := integerResult{cost: 1 << 62}
	free0 := c.free
	fix := make([]int8, len(c.mems)) // 0 open, 1 kept, -1 not kept
	over := make([]bool, len(c.mems))
	under := make([]bool, len(c.mems))
	first := c.evals

	better := func(cost int64) {
		if cost >= res.cost {
			return
		}
		res.cost = cost
		kept := append([]bool(nil), c.forced...)
		for k, e := range c.mems {
			if fix[k] == 1 || (fix[k] == 0 && under[k]) {
				kept[e.id] = true
			}
		}
		res.kept = append(res.kept, kept)
	}

	// solve bounds the branch that fix describes. It returns false if the
	// branch is empty.
	solve := func(p int64, b *branch) bool {
		if c.free < 0 {
			return false
		}
		b.lower, b.split = 0, -1
		var o, u cutPoint
		haveO, haveU := false, false
		for k := 0; k < 12; k++ {
			pt, ok := c.priced(p, fix)
			if !ok {
				return false
			}
			b.lower = max(b.lower, c.bound(pt))
			if pt.mem > c.free {
				o, haveO = pt, true
				c.flags(over)
			} else {
				u, haveU = pt, true
				c.flags(under)
				better(pt.cost)
			}
			b.p = p
			var next int64
			switch {
			case haveO && haveU:
				den, num := o.mem-u.mem, u.cost-o.cost
				if den <= 0 || num <= 0 {
					next = p
				} else {
					next = mulDiv(num, c.q, den)
				}
			case haveO:
				// At the highest price this is equal to p, and the branch is
				// left to be split.
				next = min(c.maxP, p*4)
			default:
				next = 0
			}
			if next == p || (haveO && next == o.p) || (haveU && next == u.p) || next > c.maxP {
				break
			}
			if next <= 0 {
				if !haveO {
					pt, ok := c.priced(0, fix)
					if !ok {
						return false
					}
					if pt.mem <= c.free {
						// Even free of charge it fits: solved.
						b.lower = max(b.lower, pt.cost)
						c.flags(under)
						better(pt.cost)
						return true
					}
					o, haveO = pt, true
					c.flags(over)
					next = 1
				} else {
					break
				}
			}
			p = next
		}
		// Branch on the largest buffer that the two solutions disagree on.
		var most int64 = -1
		for k, e := range c.mems {
			if fix[k] == 0 && haveO && haveU && over[k] != under[k] && c.m.size[e.id] > most {
				most, b.split = c.m.size[e.id], int32(k)
			}
		}
		if b.split < 0 && haveO {
			for k, e := range c.mems {
				if fix[k] == 0 && over[k] && c.m.size[e.id] > most {
					most, b.split = c.m.size[e.id], int32(k)
				}
			}
		}
		return true
	}

	root := &branch{p: start, edge: -1}
	if !solve(max(start, 1), root) {
		return res
	}
	open := branchHeap{root}
	count := int32(0)
	floor := root.lower
	for len(open) > 0 {
		b := open[0]
		floor = max(floor, b.lower)
		if b.lower >= res.cost || b.lower >= enough || c.evals-first >= maxEvals || b.split < 0 || stop() {
			break
		}
		heap.Pop(&open)
		for k := range fix {
			fix[k] = 0
		}
		c.free = free0
		for a := b; a.up != nil; a = a.up {
			fix[a.edge] = -1
			if a.keep {
				fix[a.edge] = 1
				c.free -= c.m.size[c.mems[a.edge].id]
			}
		}
		free := c.free
		for _, keep := range []bool{true, false} {
			count++
			child := &branch{depth: b.depth + 1, up: b, edge: b.split, keep: keep, seq: count}
			c.free = free
			if keep {
				fix[b.split] = 1
				c.free -= c.m.size[c.mems[b.split].id]
			} else {
				fix[b.split] = -1
			}
			if solve(b.p, child) {
				child.lower = max(child.lower, b.lower)
				if child.lower < res.cost {
					heap.Push(&open, child)
				}
			}
		}
	}
	c.free = free0
	res.lower = res.cost
	if len(open) > 0 {
		res.lower = min(res.cost, max(floor, open[0].lower))
	}
	if res.cost == 1<<62 && len(open) == 0 {
		// No choice fits at all: that proves more than a bound on cost does,
		// but this function only speaks about cost.
		res.lower = floor
	}
	res.evals = c.evals - first
	return res
}

// priced is at with some buffers fixed: kept ones cost nothing more (their
// bytes are off c.free already), others may not be cut.
func (c *cut) priced(p int64, fix []int8) (cutPoint, bool) {
	c.fix = fix
	pt, ok := c.at(p)
	c.fix = nil
	return pt, ok
}

// flags marks which of mems the latest solution keeps.
func (c *cut) flags(into []bool) {
	for k, e := range c.mems {
		into[k] = c.side[c.net.from[e.edge]] && !c.side[c.net.to[e.edge]]
	}
}

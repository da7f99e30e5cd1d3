package planner

import (
	"math"
	"math/bits"
	"slices"
	"sort"
)

// paretoCut solves the integer version of a cut by dynamic programming over its
// variables in the order of their nodes. What has been decided matters to the
// rest only through the few variables that are still to meet a later one; for
// each of their assignments it keeps the pairs of bytes and cost that no other
// pair beats in both. Where layers are chained, like or not, there are few of
// them, while branching would look at every one of the many ways to keep
// something in so many layers of many.
type paretoCut struct {
	c     *cut
	free  int64 // bytes left beside what every choice keeps
	base  int64 // cost of every choice
	vars  []paretoVar
	steps [][]paretoMove // by variable
	count []int          // by variable: assignments of the open ones after it
	index []int32        // by node of the network: its variable, or -1
	known []uint8        // by node of the network
	rest  [3][][]int64
	work  int64
}

// What is known of a node of the network.
const (
	sideOpen uint8 = iota
	sideTrue
	sideFalse
)

// paretoVar is a node of the cut's network whose side is not known.
type paretoVar struct {
	arcs  []paretoArc
	slot  int   // bit of it in an assignment
	close []int // slots of the variables that meet none after this one
}

// paretoArc joins a variable to an earlier one, or to a side.
type paretoArc struct {
	slot int   // bit of the earlier variable, -1 for a known side
	out  bool  // from the later variable to the earlier
	side bool  // the side, if it is known
	cost int64 // if cut; unbounded if it may not be
	mem  int64
}

// paretoMove goes from an assignment before a variable to one after it.
type paretoMove struct {
	from, to  int32
	cost, mem int64
	side      bool
}

// pareto is a partial choice.
type pareto struct {
	mem, cost int64
	from      int32 // 1 + index in the trail of what it continues, or 0
	side      bool  // of the latest variable
}

// paretoTrail is how a partial choice came about.
type paretoTrail struct {
	from int32
	side bool
}

const (
	paretoWidth = 14      // variables open at a time
	paretoMoves = 2 << 20 // moves in all
	paretoPairs = 64      // pairs that a move is to have work for, or it is not tried

	programmeWork = 24 << 20 // pairs that are looked at, at most, where the cut is the best of a problem
)

// newParetoCut returns nil if too many variables are open at a time, or no choice
// is possible at all.
func newParetoCut(c *cut) *paretoCut {
	g := c.net
	p := &paretoCut{c: c, free: c.free}
	// What follows from the edges that may not be cut.
	weight := make([]pareto, len(g.to)/2)
	for e := range weight {
		weight[e].cost = unbounded
	}
	for _, e := range c.mems {
		weight[e.edge/2] = pareto{mem: c.m.size[e.id]}
	}
	for _, e := range c.costs {
		weight[e.edge/2] = pareto{cost: c.m.cost[e.id]}
		if e.id == c.twice {
			weight[e.edge/2].cost = 0
		}
	}
	known := make([]uint8, g.nodes)
	spread := func(start int32, mark uint8, back int32) bool {
		known[start] = mark
		queue := []int32{start}
		for len(queue) > 0 {
			v := queue[len(queue)-1]
			queue = queue[:len(queue)-1]
			for _, e := range g.adj[g.first[v]:g.first[v+1]] {
				if e&1 != back || weight[e/2].cost < unbounded {
					continue
				}
				switch known[g.to[e]] {
				case sideOpen:
					known[g.to[e]] = mark
					queue = append(queue, g.to[e])
				case mark:
				default:
					return false
				}
			}
		}
		return true
	}
	if !spread(cutSource, sideTrue, 0) || !spread(cutSink, sideFalse, 1) {
		return nil
	}
	// Variables in the order of the nodes that they belong to.
	place := make([]int32, g.nodes)
	for x := range c.r {
		for _, v := range []int32{c.r[x], c.z[x]} {
			if v > cutSink {
				place[v] = int32(x)
			}
		}
	}
	for u, v := range c.a {
		if v >= 0 {
			place[v] = c.m.prod[u]
		}
	}
	var order []int32
	for v := int32(2); v < int32(g.nodes); v++ {
		if known[v] == sideOpen {
			order = append(order, v)
		}
	}
	sort.SliceStable(order, func(a, b int) bool { return place[order[a]] < place[order[b]] })
	rank := make([]int32, g.nodes)
	for v := range rank {
		rank[v] = -1
	}
	for i, v := range order {
		rank[v] = int32(i)
	}
	p.index, p.known = rank, known
	p.vars = make([]paretoVar, len(order))
	last := make([]int, len(order))
	for i := range last {
		last[i] = i
	}
	type arc struct {
		edge  int32
		later int
	}
	var arcs []arc
	for e := int32(0); e < int32(len(g.to)); e += 2 {
		a, b := g.from[e], g.to[e]
		if known[a] == sideFalse || known[b] == sideTrue {
			continue
		}
		if known[a] == sideTrue && known[b] == sideFalse {
			p.base += weight[e/2].cost
			p.free -= weight[e/2].mem
			continue
		}
		at := -1
		for _, v := range []int32{a, b} {
			if known[v] == sideOpen {
				at = max(at, int(rank[v]))
			}
		}
		for _, v := range []int32{a, b} {
			if known[v] == sideOpen {
				last[rank[v]] = max(last[rank[v]], at)
			}
		}
		arcs = append(arcs, arc{e, at})
	}
	slices.SortStableFunc(arcs, func(a, b arc) int { return a.later - b.later })
	closes := make([][]int, len(order))
	for i, l := range last {
		closes[l] = append(closes[l], i)
	}
	var used uint32
	k := 0
	for i := range p.vars {
		v := &p.vars[i]
		v.slot = bits.TrailingZeros32(^used)
		if v.slot >= paretoWidth {
			return nil
		}
		used |= 1 << v.slot
		for ; k < len(arcs) && arcs[k].later == i; k++ {
			e := arcs[k].edge
			w := weight[e/2]
			a := paretoArc{slot: -1, out: g.from[e] == order[i], cost: w.cost, mem: w.mem}
			other := g.to[e]
			if !a.out {
				other = g.from[e]
			}
			if known[other] == sideOpen {
				a.slot = p.vars[rank[other]].slot
			} else {
				a.side = known[other] == sideTrue
			}
			v.arcs = append(v.arcs, a)
		}
		for _, j := range closes[i] {
			v.close = append(v.close, p.vars[j].slot)
			used &^= 1 << p.vars[j].slot
		}
	}
	return p
}

// build finds the assignments that can be reached, and the moves between them.
func (p *paretoCut) build() bool {
	states := []uint32{0}
	index := make([]int32, 1<<paretoWidth)
	for i := range index {
		index[i] = -1
	}
	total := 0
	for i := range p.vars {
		v := &p.vars[i]
		var drop uint32
		for _, s := range v.close {
			drop |= 1 << s
		}
		var next []uint32
		var moves []paretoMove
		for from, s := range states {
			for _, side := range []bool{false, true} {
				mv := paretoMove{from: int32(from), side: side}
				ok := true
				for _, a := range v.arcs {
					other := a.side
					if a.slot >= 0 {
						other = s>>a.slot&1 != 0
					}
					if a.out && side && !other || !a.out && !side && other {
						if a.cost >= unbounded {
							ok = false
							break
						}
						mv.cost += a.cost
						mv.mem += a.mem
					}
				}
				if !ok {
					continue
				}
				to := s
				if side {
					to |= 1 << v.slot
				}
				to &^= drop
				if index[to] < 0 {
					index[to] = int32(len(next))
					next = append(next, to)
				}
				mv.to = index[to]
				moves = append(moves, mv)
			}
		}
		for _, s := range next {
			index[s] = -1
		}
		total += len(moves)
		if total > paretoMoves {
			return false
		}
		p.steps = append(p.steps, moves)
		p.count = append(p.count, len(next))
		states = next
	}
	p.work += int64(total)
	return true
}

// least returns, by variable and assignment before it, the least of
// cost·q + bytes·price that is still to come.
func (p *paretoCut) least(q, price int64) [][]int64 {
	h := make([][]int64, len(p.steps)+1)
	h[len(p.steps)] = []int64{0}
	for i := len(p.steps) - 1; i >= 0; i-- {
		n := 1
		if i > 0 {
			n = p.count[i-1]
		}
		h[i] = make([]int64, n)
		for s := range h[i] {
			h[i][s] = math.MaxInt64
		}
		for _, mv := range p.steps[i] {
			if l := h[i+1][mv.to]; l < math.MaxInt64 {
				h[i][mv.from] = min(h[i][mv.from], l+q*mv.cost+price*mv.mem)
			}
		}
	}
	return h
}

// run returns the least cost beyond every node once of a choice that fits, or
// enough if none costs less. done is false where it gave up, after maxWork. With
// trace it returns the choice as well, by variable, if there is one.
func (p *paretoCut) run(price, enough, maxWork int64, trace bool, stop func() bool) (cost int64, sides []bool, done bool) {
	q := p.c.q
	enough -= p.base
	if enough <= 0 {
		return p.base + enough, nil, true
	}
	// What a choice costs at least, by each of three measures; one that comes to
	// more than a cheap enough choice that fits can is left out.
	priced, bytes, costs := p.rest[0], p.rest[1], p.rest[2]
	most := q*enough + price*p.free
	lists := [][]pareto{{{}}}
	var merged []pareto
	var trail []paretoTrail
	for i, moves := range p.steps {
		if p.work > maxWork || stop() {
			return 0, nil, false
		}
		next := make([][]pareto, p.count[i])
		for _, mv := range moves {
			hp, hm, hc := priced[i+1][mv.to], bytes[i+1][mv.to], costs[i+1][mv.to]
			if hp == math.MaxInt64 {
				continue
			}
			// Lists are in order of rising bytes and falling cost.
			have := next[mv.to]
			merged = merged[:0]
			k := 0
			put := func(e pareto) {
				if n := len(merged); n == 0 || e.cost < merged[n-1].cost {
					merged = append(merged, e)
				}
			}
			for _, e := range lists[mv.from] {
				e.mem += mv.mem
				e.cost += mv.cost
				p.work++
				if e.mem+hm > p.free {
					break
				}
				if e.cost+hc >= enough || q*e.cost+price*e.mem+hp >= most {
					continue
				}
				for ; k < len(have) && (have[k].mem < e.mem || have[k].mem == e.mem && have[k].cost <= e.cost); k++ {
					put(have[k])
				}
				e.side = mv.side
				put(e)
			}
			for ; k < len(have); k++ {
				put(have[k])
			}
			next[mv.to] = append(have[:0:0], merged...)
		}
		for _, l := range next {
			for k := 0; k < len(l) && trace; k++ {
				trail = append(trail, paretoTrail{l[k].from, l[k].side})
				l[k].from = int32(len(trail))
			}
		}
		lists = next
	}
	for _, l := range lists {
		for _, e := range l {
			if e.cost >= enough {
				continue
			}
			enough = e.cost
			if trace {
				sides = make([]bool, len(p.steps))
				for i, at := len(sides)-1, e.from; i >= 0 && at > 0; i, at = i-1, trail[at-1].from {
					sides[i] = trail[at-1].side
				}
			}
		}
	}
	return p.base + enough, sides, true
}

// programme is integer by dynamic programming. The second result is false where
// it can't: too many variables are open at a time, or it took more than maxWork.
// Then the bound holds all the same.
func (c *cut) programme(price, lower, enough, maxWork int64, stop func() bool) (integerResult, bool) {
	res := integerResult{lower: lower, cost: 1 << 62}
	p := newParetoCut(c)
	if p == nil || p.free < 0 || !p.build() || maxWork < paretoPairs*p.work {
		return res, false
	}
	p.rest = [3][][]int64{p.least(c.q, price), p.least(0, 1), p.least(1, 0)}
	enough = min(enough, c.m.base+1)
	// The nearer the limit to the bound, the fewer pairs: it is raised step by step.
	for step := max(1, (enough-lower)/1024); ; step *= 4 {
		limit := min(enough, res.lower+step)
		cost, _, done := p.run(price, limit, maxWork, false, stop)
		res.work = p.work
		if !done {
			return res, false
		}
		res.lower = max(res.lower, cost)
		if cost == limit && limit < enough {
			continue
		}
		if cost < limit {
			// Once more for the choice itself: now that its cost is known there are
			// fewer pairs to remember.
			res.cost = cost
			if _, sides, done := p.run(price, cost+1, p.work+maxWork, true, stop); done {
				res.kept = [][]bool{p.kept(sides)}
			}
			res.work = p.work
		}
		return res, true
	}
}

// kept tells what a choice keeps, by buffer.
func (p *paretoCut) kept(sides []bool) []bool {
	c := p.c
	keep := append([]bool(nil), c.forced...)
	side := func(v int32) bool {
		if i := p.index[v]; i >= 0 {
			return sides[i]
		}
		return p.known[v] == sideTrue
	}
	for _, e := range c.mems {
		if side(c.net.from[e.edge]) && !side(c.net.to[e.edge]) {
			keep[e.id] = true
		}
	}
	return keep
}

package planner

import (
	"math/bits"
	"sort"
)

// A cut looks at one moment of a plan: the first run of node b. Each node has
// run before it or not, runs after it or not; each buffer is in memory then or
// not. Whatever runs after needs its inputs: in memory at that moment, or
// computed after it. Minimising cost under the memory limit at that one moment
// is a relaxation of planning; with a price on memory instead of the limit it
// is a minimum cut. docs/planner.md has the statement and the proof.
//
// Network (source side is true):
//
//	r_x  node x runs after the moment
//	z_x  node x has not run before it (true for b's descendants, false for its
//	     ancestors and b itself: those z are the source and the sink)
//	a_u  buffer u is to be had after the moment
//
//	r_x → a_u   unbounded   u an input of x
//	a_u → r_x   price·size  u an output of x: kept in memory
//	r_x → z_x   cost        x runs before and after (unbounded if x may not)
//	z_x → r_x   unbounded
//	z_y → z_x   unbounded   y must precede x
//	r_x → z_w   unbounded   overwriter w must follow every run of x
type cut struct {
	m      *model
	b      int32
	free   int64  // budget left beside b's working set
	forced []bool // by buffer: in b's working set
	net    *flowNet
	r, z   []int32 // by node: network node; z is source or sink where it is known
	a      []int32 // by buffer: network node, -1 if it needs none
	mems   []capEdge
	costs  []capEdge
	q      int64 // scale of costs: price is p/q
	maxP   int64
	side   []bool
	evals  int
	fix    []int8 // by mems, while branching: 1 kept, -1 not kept, 0 open
	twice  int32  // a node that runs before and after at no cost, or -1
}

type capEdge struct {
	edge int32
	id   int32 // buffer or node
}

const (
	cutSource int32 = 0
	cutSink   int32 = 1
)

// cutPoint is the solution of a cut for one price.
type cutPoint struct {
	p     int64 // price is p/q
	value int64 // q·cost + p·memory, the flow
	cost  int64 // cost beyond every node once
	mem   int64 // bytes kept beside b's working set
}

// newCut builds the network for node b. kin must give the ancestors and
// descendants.
func newCut(m *model, k *kin, b int32, budget int64) *cut {
	c := &cut{m: m, b: b, free: budget - m.workingSet(b), forced: make([]bool, len(m.size)),
		r: make([]int32, m.n), z: make([]int32, m.n), a: make([]int32, len(m.size)), twice: -1}
	k.classify(b)
	for _, u := range m.ins[b] {
		c.forced[u] = true
	}
	for _, u := range m.outs[b] {
		c.forced[u] = true
	}
	g := &flowNet{nodes: 2}
	node := func() int32 {
		g.nodes++
		return int32(g.nodes - 1)
	}
	for x := 0; x < m.n; x++ {
		switch k.kind[x] {
		case kinAfter:
			c.r[x], c.z[x] = cutSource, cutSource
		case kinBefore:
			c.r[x], c.z[x] = node(), cutSink
		default:
			c.r[x], c.z[x] = node(), node()
		}
	}
	for u := range m.size {
		x := m.prod[u]
		if m.size[u] == 0 || m.loose[u] || c.forced[u] || k.kind[x] == kinAfter {
			c.a[u] = -1 // free to keep, or made after anyway
			continue
		}
		c.a[u] = node()
		c.mems = append(c.mems, capEdge{g.edge(c.a[u], c.r[x], 0), int32(u)})
		if m.final[u] {
			g.edge(cutSource, c.a[u], unbounded)
		}
	}
	unb := func(a, b int32) {
		if a != b && b != cutSource && a != cutSink {
			g.edge(a, b, unbounded)
		}
	}
	for i := 0; i < m.n; i++ {
		x := int32(i)
		for _, u := range m.ins[x] {
			if c.a[u] >= 0 {
				unb(c.r[x], c.a[u])
			}
		}
		if c.r[x] != cutSource {
			switch {
			case m.strict[x]:
				unb(c.r[x], c.z[x])
			case m.cost[x] > 0:
				c.costs = append(c.costs, capEdge{g.edge(c.r[x], c.z[x], 0), x})
			}
			unb(c.z[x], c.r[x])
		}
		for _, u := range m.ins[x] {
			unb(c.z[m.prod[u]], c.z[x])
		}
		for _, y := range m.ctrl[x] {
			unb(c.z[y], c.z[x])
		}
		for _, y := range m.lost[x] {
			unb(c.z[y], c.z[x])
			unb(c.r[y], c.z[x])
		}
	}
	c.net = g
	g.index()
	c.side = make([]bool, g.nodes)
	c.scale()
	return c
}

// scale chooses the scale: q·Σcost and p·Σsize must both stay below unbounded/2.
func (c *cut) scale() {
	m := c.m
	var sumM int64
	for _, e := range c.mems {
		sumM += m.size[e.id]
	}
	room := uint64(unbounded / 2)
	c.q = 1
	if s := uint64(max(m.base, 1)); room/s > 1 {
		c.q = 1 << min(bits.Len64(room/s)-1, 50)
	}
	c.maxP = int64(room / uint64(max(sumM, 1)))
	if free := max(c.free, 0); free > 0 {
		c.maxP = min(c.maxP, int64(room/uint64(free)))
	}
}

// at solves the cut for price p/q. The second result is false if no choice of
// what to keep is allowed at all (pinned values forbid it).
func (c *cut) at(p int64) (cutPoint, bool) {
	g := c.net
	c.evals++
	for e := range g.cap {
		if e&1 == 0 && g.cap[e]+g.cap[e+1] >= unbounded {
			g.cap[e], g.cap[e+1] = unbounded, 0
		}
	}
	for k, e := range c.mems {
		price := p * c.m.size[e.id]
		if c.fix != nil && c.fix[k] != 0 {
			price = 0
			if c.fix[k] < 0 {
				price = unbounded
			}
		}
		g.cap[e.edge], g.cap[e.edge+1] = price, 0
	}
	for _, e := range c.costs {
		g.cap[e.edge], g.cap[e.edge+1] = c.q*c.m.cost[e.id], 0
		if e.id == c.twice {
			g.cap[e.edge] = 0
		}
	}
	v := g.augment(cutSource, cutSink, unbounded)
	if v >= unbounded {
		return cutPoint{}, false
	}
	g.sourceSide(cutSource, c.side)
	pt := cutPoint{p: p, value: v}
	for k, e := range c.mems {
		if c.fix != nil && c.fix[k] != 0 {
			continue
		}
		if c.side[g.from[e.edge]] && !c.side[g.to[e.edge]] {
			pt.mem += c.m.size[e.id]
		}
	}
	for _, e := range c.costs {
		if e.id != c.twice && c.side[g.from[e.edge]] && !c.side[g.to[e.edge]] {
			pt.cost += c.m.cost[e.id]
		}
	}
	return pt, true
}

// bound turns the solution for one price into a lower bound on the cost beyond
// every node once, rounded up because costs are whole. It is exact arithmetic
// on a feasible flow, so it holds whatever the flow's quality.
func (c *cut) bound(pt cutPoint) int64 {
	d := pt.value - pt.p*max(c.free, 0)
	if d <= 0 {
		return 0
	}
	return (d + c.q - 1) / c.q
}

// cutBest is the best price for a cut, with the solutions on its two sides.
type cutBest struct {
	lower    int64    // on cost beyond every node once
	over     cutPoint // cheapest solution found that keeps too much
	under    cutPoint // solution that fits, if any
	fits     bool
	possible bool // false: no plan fits the budget
}

// maximise finds the price with the best bound by intersecting the lines of the
// two solutions that bracket it. start is a guess of p, or 0.
func (c *cut) maximise(start int64, maxEvals int) cutBest {
	best := cutBest{possible: true}
	if c.free < 0 {
		best.possible = false
		return best
	}
	take := func(pt cutPoint) {
		best.lower = max(best.lower, c.bound(pt))
		if pt.mem > c.free {
			best.over = pt
		} else {
			best.under, best.fits = pt, true
		}
	}
	lo, ok := c.at(0)
	if !ok {
		best.possible = false
		return best
	}
	take(lo)
	if lo.mem <= c.free {
		return best
	}
	p := start
	if p <= 0 {
		// A price at which memory and cost weigh the same.
		p = int64(float64(c.q) * float64(max(c.m.base, 1)) / float64(max(lo.mem, 1)) / 4)
	}
	p = max(1, min(p, c.maxP))
	for k := 0; k < maxEvals; k++ {
		pt, ok := c.at(p)
		if !ok {
			best.possible = false
			return best
		}
		take(pt)
		var next int64
		switch {
		case !best.fits:
			if p >= c.maxP {
				// The scale leaves no room for a higher price. With a coarser
				// one there is, until memory outweighs everything.
				if c.q < 1<<8 {
					return best
				}
				c.q >>= 6
				best.over = cutPoint{}
				p = max(1, p>>3)
				continue
			}
			if p > c.maxP/8 {
				next = c.maxP
			} else {
				next = p * 8
			}
		default:
			o, u := best.over, best.under
			den := o.mem - u.mem
			num := u.cost - o.cost
			if den <= 0 || num <= 0 {
				return best
			}
			next = mulDiv(num, c.q, den)
		}
		if next == p || next == best.over.p || next <= 0 {
			// The whole-number price next to the intersection may be better.
			if best.fits && next > 0 && next+1 < best.under.p {
				if pt, ok := c.at(next + 1); ok {
					best.lower = max(best.lower, c.bound(pt))
				}
			}
			return best
		}
		if best.fits && next == best.under.p {
			return best
		}
		p = min(next, c.maxP)
	}
	return best
}

// mulDiv returns a·b/c, rounded down, for positive numbers, or 0 if it does not
// fit.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return 0
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, 1<<62))
}

// least returns the fewest bytes that can be in memory when b runs first,
// whatever it costs.
func (c *cut) least() int64 {
	q := c.q
	c.q = 0
	pt, ok := c.at(1)
	c.q = q
	if !ok {
		return c.m.workingSet(c.b)
	}
	return c.m.workingSet(c.b) + pt.value
}

// kept marks in keep the buffers in memory at the moment, for the solution that
// at was last called for.
func (c *cut) kept(keep []bool) {
	for u := range keep {
		keep[u] = c.forced[u]
	}
	for _, e := range c.mems {
		if c.side[c.net.from[e.edge]] && !c.side[c.net.to[e.edge]] {
			keep[e.id] = true
		}
	}
}

// phases turns the solution that at was last called for into a sequence: what has run by the moment, then what runs
// after it, each in the model's order.
func (c *cut) phases() []int32 {
	var before, after []int32
	is := func(node int32) bool { return node == cutSource || node != cutSink && c.side[node] }
	for _, x := range c.m.order {
		if !is(c.z[x]) {
			before = append(before, x)
		}
		if is(c.r[x]) {
			after = append(after, x)
		}
	}
	return append(before, after...)
}

// kin finds ancestors and descendants over everything that orders nodes.
type kin struct {
	m     *model
	pred  [][]int32
	succ  [][]int32
	kind  []uint8
	stack []int32
}

const (
	kinFree uint8 = iota
	kinBefore
	kinAfter
)

func newKin(m *model) *kin {
	k := &kin{m: m, pred: make([][]int32, m.n), succ: make([][]int32, m.n), kind: make([]uint8, m.n)}
	link := func(a, b int32) {
		k.pred[b] = append(k.pred[b], a)
		k.succ[a] = append(k.succ[a], b)
	}
	for i := 0; i < m.n; i++ {
		x := int32(i)
		for _, u := range m.ins[x] {
			link(m.prod[u], x)
		}
		for _, y := range m.ctrl[x] {
			link(y, x)
		}
		for _, y := range m.lost[x] {
			link(y, x)
		}
	}
	return k
}

// classify sets kind for the moment at which b first runs.
func (k *kin) classify(b int32) {
	for x := range k.kind {
		k.kind[x] = kinFree
	}
	walk := func(next [][]int32, mark uint8) {
		k.stack = append(k.stack[:0], b)
		for len(k.stack) > 0 {
			x := k.stack[len(k.stack)-1]
			k.stack = k.stack[:len(k.stack)-1]
			for _, y := range next[x] {
				if k.kind[y] != mark {
					k.kind[y] = mark
					k.stack = append(k.stack, y)
				}
			}
		}
	}
	walk(k.succ, kinAfter)
	walk(k.pred, kinBefore)
	k.kind[b] = kinBefore
}

// sweep finds the node whose cut bounds best. It looks at the nodes that run
// while the given sequence is over budget, coarsely, then around the best.
type sweepResult struct {
	lower    int64 // on cost beyond every node once
	node     int32
	p        int64
	possible bool
	cut      *cut
	best     cutBest
}

func sweep(m *model, k *kin, order []int32, mem []int64, budget int64, maxCuts int, stop func() bool) sweepResult {
	res := sweepResult{node: -1, possible: true}
	// Candidates in order of time, and their ranks by memory.
	var cand []int32
	var need []int64
	for i, x := range order {
		if mem[i] > budget {
			cand = append(cand, x)
			need = append(need, mem[i])
		}
	}
	if len(cand) == 0 {
		return res
	}
	byMem := make([]int, len(cand))
	for i := range byMem {
		byMem[i] = i
	}
	sort.SliceStable(byMem, func(a, b int) bool { return need[byMem[a]] > need[byMem[b]] })
	tried := make([]bool, len(cand))
	bestAt := -1
	var lastP int64
	var lastQ int64
	try := func(i int) {
		if i < 0 || i >= len(cand) || tried[i] || maxCuts <= 0 || stop() {
			return
		}
		tried[i] = true
		maxCuts--
		c := newCut(m, k, cand[i], budget)
		start := int64(0)
		if lastP > 0 {
			start = int64(float64(lastP) * float64(c.q) / float64(lastQ))
		}
		b := c.maximise(start, 24)
		if !b.possible {
			res.possible = false
			return
		}
		if b.over.p > 0 {
			lastP, lastQ = b.over.p, c.q
		}
		if b.lower > res.lower || res.node < 0 {
			res.lower, res.node, res.p, res.cut, res.best = b.lower, cand[i], b.over.p, c, b
			bestAt = i
		}
	}
	for i := 0; i < len(byMem) && i < 6; i++ {
		try(byMem[i])
	}
	const coarse = 10
	step := max(1, len(cand)/coarse)
	for i := step / 2; i < len(cand); i += step {
		try(i)
	}
	for step > 1 {
		step = (step + 1) / 2
		if bestAt >= 0 {
			at := bestAt
			try(at - step)
			try(at + step)
		}
		if step == 1 {
			break
		}
	}
	for moved := true; moved && bestAt >= 0; {
		at := bestAt
		for d := 1; d <= 3; d++ {
			try(at - d)
			try(at + d)
		}
		moved = bestAt != at && maxCuts > 0 && !stop()
	}
	return res
}

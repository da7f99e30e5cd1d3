package planner

import (
	"container/heap"
	"math"
	"math/bits"
	"sort"
)

// pathCut bounds by two cuts in a row. The first is at the first run of node b.
// A branch knows of some buffers that they are in memory there, and of others
// that they are not. What is not there and is needed by what has to run after b
// runs again after b, with what that needs in turn: it is paid for. What is left
// to do after b is then a problem of its own, in which those nodes run for the
// first time, and the second cut is at the first run after b of any of its
// nodes. One network holds both cuts, with a price on memory for each, so that
// what no branch has decided yet is decided by the minimum cut.
// docs/planner.md has the statement and the proof.
type pathCut struct {
	m      *model
	k      *kin
	b      int32
	budget int64
	first  *cut

	fix   []int8  // by first.mems: 1 in memory at b, -1 not, 0 open
	index []int32 // by buffer: index in first.mems, or -1
	state []uint8 // by node: what is known of it after b
	out   []bool  // by buffer: known not to be in memory at b
	kind  []uint8 // by node: for the second cut
	stack []int32
	work  int64 // edges of the networks of all flows
}

const (
	pathOpen uint8 = iota // may run before b or after
	pathRan               // has run when b runs, and may run again
	pathMust              // has to run after b
)

// price is what a byte costs at each of the two cuts.
type price [2]float64

func newPathCut(m *model, k *kin, b int32, budget int64) *pathCut {
	p := &pathCut{m: m, k: k, b: b, budget: budget, first: newCut(m, k, b, budget), index: make([]int32, len(m.size)),
		state: make([]uint8, m.n), out: make([]bool, len(m.size)), kind: make([]uint8, m.n)}
	p.fix = make([]int8, len(p.first.mems))
	for u := range p.index {
		p.index[u] = -1
	}
	for i, e := range p.first.mems {
		p.index[e.id] = int32(i)
	}
	return p
}

// settle works out from fix what must run after b, and what that costs beyond
// every node once. It returns false if something must that may not.
func (p *pathCut) settle() (paid int64, ok bool) {
	m := p.m
	clear(p.out)
	for i, e := range p.first.mems {
		p.out[e.id] = p.fix[i] < 0
	}
	p.k.classify(p.b)
	p.stack = p.stack[:0]
	for x, kind := range p.k.kind {
		switch kind {
		case kinBefore:
			p.state[x] = pathRan
		case kinAfter:
			p.state[x] = pathMust
			p.stack = append(p.stack, int32(x))
		default:
			p.state[x] = pathOpen
		}
	}
	ok = true
	need := func(u int32) {
		y := m.prod[u]
		if !p.out[u] || p.state[y] != pathRan {
			return
		}
		ok = ok && !m.strict[y]
		p.state[y] = pathMust
		paid += m.cost[y]
		p.stack = append(p.stack, y)
	}
	for u, f := range m.final {
		if f {
			need(int32(u))
		}
	}
	for len(p.stack) > 0 {
		x := p.stack[len(p.stack)-1]
		p.stack = p.stack[:len(p.stack)-1]
		for _, u := range m.ins[x] {
			need(u)
		}
	}
	return paid, ok
}

// awaited reports whether the first run after b of what reads u has to wait for
// a run after b of what makes u.
func (p *pathCut) awaited(u int32) bool {
	y := p.m.prod[u]
	return p.state[y] == pathMust && (p.out[u] || p.k.kind[y] == kinAfter)
}

// sort2 marks in kind what surely has run after b when x does so first, and
// what surely has not, among what must.
func (p *pathCut) sort2(x int32) {
	m := p.m
	for y := range p.kind {
		p.kind[y] = kinFree
	}
	p.kind[x] = kinBefore
	p.stack = append(p.stack[:0], x)
	for len(p.stack) > 0 {
		y := p.stack[len(p.stack)-1]
		p.stack = p.stack[:len(p.stack)-1]
		for _, u := range m.ins[y] {
			if w := m.prod[u]; p.awaited(u) && p.kind[w] == kinFree {
				p.kind[w] = kinBefore
				p.stack = append(p.stack, w)
			}
		}
	}
	p.stack = append(p.stack[:0], x)
	for len(p.stack) > 0 {
		y := p.stack[len(p.stack)-1]
		p.stack = p.stack[:len(p.stack)-1]
		for _, u := range m.outs[y] {
			if !p.awaited(u) {
				continue
			}
			for _, w := range m.users[u] {
				if p.state[w] == pathMust && p.kind[w] == kinFree {
					p.kind[w] = kinAfter
					p.stack = append(p.stack, w)
				}
			}
		}
	}
}

// joint is two cuts in a row as one network.
type joint struct {
	m     *model
	free  [2]int64     // budget left at each
	mems  [2][]capEdge // cut where a buffer is in memory there
	costs []capEdge
	net   *flowNet
	side  []bool
	q     int64 // scale of costs: prices are p/q
	maxP  int64
}

// second builds the network for the first run of x after b. settle must have
// been called.
//
//	t_y  node y runs after b
//	r_y  node y runs after the second moment
//	z_y  node y runs after b, and has not at the second moment
//	A_u  buffer u is to be had after b
//	a_u  buffer u is to be had after the second moment
//
//	A_u → t_y   price·size  u an output of y: in memory at b
//	a_u → r_y   price·size  in memory at the second moment
//	a_u → A_u   unbounded
//	t_y → sink  cost        y has run before b, and runs again
//	r_y → z_y   cost        y runs between the moments, or has before b, and after both
//	z_y → t_y, z_y → r_y    unbounded
//	t_y → A_u, r_y → a_u    unbounded: u an input of y
//	z_w → z_y   unbounded   y must run after b, and w before it
func (p *pathCut) second(x int32) *joint {
	m := p.m
	p.sort2(x)
	c := &joint{m: m, free: [2]int64{p.first.free, p.budget - m.workingSet(x)}}
	forced := make([]bool, len(m.size))
	for _, u := range m.ins[x] {
		forced[u] = true
	}
	for _, u := range m.outs[x] {
		forced[u] = true
	}
	g := &flowNet{nodes: 2}
	node := func() int32 {
		g.nodes++
		return int32(g.nodes - 1)
	}
	t, r, z := make([]int32, m.n), make([]int32, m.n), make([]int32, m.n)
	for y := range t {
		switch {
		case p.state[y] == pathOpen:
			t[y], r[y], z[y] = cutSource, node(), cutSink
		case p.state[y] == pathRan:
			t[y], r[y], z[y] = node(), node(), node()
		case p.kind[y] == kinAfter:
			t[y], r[y], z[y] = cutSource, cutSource, cutSource
		case p.kind[y] == kinBefore:
			t[y], r[y], z[y] = cutSource, node(), cutSink
		default:
			t[y], r[y], z[y] = cutSource, node(), node()
		}
	}
	unb := func(a, b int32) {
		if a != b && b != cutSource && a != cutSink {
			g.edge(a, b, unbounded)
		}
	}
	had, later := make([]int32, len(m.size)), make([]int32, len(m.size))
	for u := range had {
		had[u], later[u] = -1, -1
		y := m.prod[u]
		if i := p.index[u]; i >= 0 && p.state[y] == pathRan {
			switch {
			case p.fix[i] == 0:
				had[u] = node()
				c.mems[0] = append(c.mems[0], capEdge{g.edge(had[u], t[y], 0), int32(u)})
			case p.fix[i] < 0:
				had[u] = t[y]
			}
		}
		if m.size[u] == 0 || m.loose[u] || forced[u] || (p.state[y] == pathMust && p.kind[y] == kinAfter) {
			continue
		}
		later[u] = node()
		c.mems[1] = append(c.mems[1], capEdge{g.edge(later[u], r[y], 0), int32(u)})
		if had[u] >= 0 {
			unb(later[u], had[u])
		}
		if m.final[u] {
			g.edge(cutSource, later[u], unbounded)
		}
	}
	for i, e := range p.first.mems {
		if p.fix[i] > 0 {
			c.free[0] -= m.size[e.id]
		}
	}
	// alone says that y runs again for the sake of u only, as far as memory is
	// counted at b: then it does not while u is there.
	alone := func(u int32) bool {
		for _, v := range m.outs[m.prod[u]] {
			if v != u && p.index[v] >= 0 {
				return false
			}
		}
		return p.index[u] >= 0 && p.fix[p.index[u]] == 0
	}
	for i := range t {
		y := int32(i)
		for _, u := range m.ins[y] {
			if had[u] >= 0 && p.state[y] != pathOpen {
				unb(t[y], had[u])
			}
			if later[u] >= 0 {
				unb(r[y], later[u])
			}
		}
		if p.state[y] == pathRan {
			switch {
			case m.strict[y]:
				unb(t[y], cutSink)
			case m.cost[y] > 0:
				c.costs = append(c.costs, capEdge{g.edge(t[y], cutSink, 0), y})
			}
			unb(z[y], t[y])
		}
		if r[y] != cutSource {
			switch {
			case p.state[y] == pathOpen: // one run is paid for
			case m.strict[y]:
				unb(r[y], z[y])
			case m.cost[y] > 0:
				c.costs = append(c.costs, capEdge{g.edge(r[y], z[y], 0), y})
			}
			unb(z[y], r[y])
		}
		if p.state[y] != pathMust {
			continue
		}
		for _, u := range m.ins[y] {
			if w := m.prod[u]; p.awaited(u) || p.state[w] == pathRan && alone(u) {
				unb(z[w], z[y])
			}
		}
	}
	c.net = g
	g.index()
	c.side = make([]bool, g.nodes)
	var bytes int64
	for k := range c.mems {
		for _, e := range c.mems[k] {
			bytes += m.size[e.id]
		}
	}
	room := uint64(unbounded / 4)
	c.q = 1
	if s := 2 * uint64(max(m.base, 1)); room/s > 1 {
		c.q = 1 << min(bits.Len64(room/s)-1, 50)
	}
	c.maxP = int64(room / uint64(max(bytes, c.free[0], c.free[1], 1)))
	return c
}

// jointPoint is the solution for a pair of prices.
type jointPoint struct {
	value int64 // the flow
	cost  int64
	mem   [2]int64
}

func (c *joint) at(p [2]int64) (jointPoint, bool) {
	g := c.net
	for e := range g.cap {
		if e&1 == 0 && g.cap[e]+g.cap[e+1] >= unbounded {
			g.cap[e], g.cap[e+1] = unbounded, 0
		}
	}
	for k := range c.mems {
		for _, e := range c.mems[k] {
			g.cap[e.edge], g.cap[e.edge+1] = p[k]*c.m.size[e.id], 0
		}
	}
	for _, e := range c.costs {
		g.cap[e.edge], g.cap[e.edge+1] = c.q*c.m.cost[e.id], 0
	}
	pt := jointPoint{value: g.augment(cutSource, cutSink, unbounded)}
	if pt.value >= unbounded {
		return pt, false
	}
	g.sourceSide(cutSource, c.side)
	isCut := func(e int32) bool { return c.side[g.from[e]] && !c.side[g.to[e]] }
	for k := range c.mems {
		for _, e := range c.mems[k] {
			if isCut(e.edge) {
				pt.mem[k] += c.m.size[e.id]
			}
		}
	}
	for _, e := range c.costs {
		if isCut(e.edge) {
			pt.cost += c.m.cost[e.id]
		}
	}
	return pt, true
}

// bound is that of a cut: exact arithmetic on a feasible flow, rounded up
// because costs are whole.
func (c *joint) bound(p [2]int64, pt jointPoint) int64 {
	d := pt.value - p[0]*c.free[0] - p[1]*c.free[1]
	if d <= 0 {
		return 0
	}
	return (d + c.q - 1) / c.q
}

// plane is what a solution proves of every pair of prices: the bound is at most
// cost + Σ over·price there.
type plane struct{ cost, over0, over1 float64 }

// maximise raises the bound by planes: the next prices are where the lowest of
// those so far is highest. It returns the bound, on cost beyond what is paid,
// and the prices that gave it; ok is false if the branch is empty.
func (c *joint) maximise(start price, enough int64, maxFlows int) (lower int64, best price, flows int, ok bool) {
	if c.free[0] < 0 || c.free[1] < 0 {
		return 0, best, 0, false
	}
	var planes []plane
	seen := make(map[[2]int64]bool)
	for at := start; flows < maxFlows; {
		var p [2]int64
		for k := range p {
			p[k] = int64(min(max(at[k], 0)*float64(c.q), float64(c.maxP)))
		}
		if seen[p] {
			break
		}
		seen[p] = true
		pt, possible := c.at(p)
		flows++
		if !possible {
			return 0, best, flows, false
		}
		if l := c.bound(p, pt); l > lower || flows == 1 {
			lower, best = l, price{float64(p[0]) / float64(c.q), float64(p[1]) / float64(c.q)}
		}
		if lower >= enough {
			break
		}
		planes = append(planes, plane{float64(pt.cost), float64(pt.mem[0] - c.free[0]), float64(pt.mem[1] - c.free[1])})
		limit := max(8*at[0], 8*at[1], 1/float64(c.q)) // prices grow step by step
		next, height := highest(planes, min(limit, float64(c.maxP)/float64(c.q)))
		if height <= float64(lower)+0.5 {
			break
		}
		at = next
	}
	return lower, best, flows, true
}

// highest returns where the lowest of planes is highest, for prices between
// zero and limit, and how high: it is at a corner of the lower envelope.
func highest(planes []plane, limit float64) (at price, height float64) {
	height = math.Inf(-1)
	try := func(x, y float64) {
		const slack = 1e-9
		if x < -slack*limit || y < -slack*limit || x > limit*(1+slack) || y > limit*(1+slack) {
			return
		}
		v := math.Inf(1)
		for _, q := range planes {
			v = min(v, q.cost+q.over0*x+q.over1*y)
		}
		if v > height {
			at, height = price{max(x, 0), max(y, 0)}, v
		}
	}
	for _, x := range [2]float64{0, limit} {
		for _, y := range [2]float64{0, limit} {
			try(x, y)
		}
	}
	for i, a := range planes {
		for j := i + 1; j < len(planes); j++ {
			// Two planes meet in a line d0·x + d1·y = e.
			b := planes[j]
			d0, d1, e := a.over0-b.over0, a.over1-b.over1, b.cost-a.cost
			for _, side := range [2]float64{0, limit} {
				if d1 != 0 {
					try(side, (e-d0*side)/d1)
				}
				if d0 != 0 {
					try((e-d1*side)/d0, side)
				}
			}
			for _, c := range planes[j+1:] {
				f0, f1, g := a.over0-c.over0, a.over1-c.over1, c.cost-a.cost
				if det := d0*f1 - d1*f0; det != 0 {
					try((e*f1-d1*g)/det, (d0*g-e*f0)/det)
				}
			}
		}
	}
	return at, height
}

// pathBranch is a branch of the search over what is in memory at b.
type pathBranch struct {
	lower int64 // on cost beyond every node once
	up    *pathBranch
	edge  int32 // index in first.mems of what is decided here
	keep  bool
	depth int
	seq   int32   // order of creation, for ties
	at    []int32 // where second cuts bound best
	start []price // prices there
}

type pathHeap []*pathBranch

func (h pathHeap) Len() int { return len(h) }
func (h pathHeap) Less(a, b int) bool {
	if h[a].lower != h[b].lower {
		return h[a].lower < h[b].lower
	}
	if h[a].depth != h[b].depth {
		return h[a].depth > h[b].depth
	}
	return h[a].seq < h[b].seq
}
func (h pathHeap) Swap(a, b int) { h[a], h[b] = h[b], h[a] }
func (h *pathHeap) Push(x any)   { *h = append(*h, x.(*pathBranch)) }
func (h *pathHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

const (
	pathEvery  = 4   // levels of branches between two looks at all second cuts
	pathBest   = 6   // second cuts that the others look at
	pathLooks  = 160 // second cuts that one look at all takes at most
	pathMore   = 16  // of those that it takes, the ones that it prices well
	pathFlows  = 14  // flows for one second cut
	firstRatio = 0.125
)

// bound bounds the branch that fix describes. It returns false if that is empty.
func (p *pathCut) bound(b *pathBranch, guess float64, enough int64) bool {
	paid, ok := p.settle()
	if !ok {
		return false
	}
	at, start := b.at, b.start
	if b.depth%pathEvery == 0 {
		known := make(map[int32]price, len(at))
		for k, x := range at {
			known[x] = start[k]
		}
		at, start = nil, nil
		for x := range p.state {
			if p.state[x] == pathMust {
				at = append(at, int32(x))
			}
		}
		if n := len(at); n > pathLooks {
			some := at[:0]
			for k := 0; k < pathLooks; k++ {
				some = append(some, at[(k*n+b.depth*n/(2*pathEvery))/pathLooks%n])
			}
			at = some
		}
		for _, x := range at {
			pr, ok := known[x]
			if !ok {
				pr = price{guess, guess * firstRatio}
			}
			start = append(start, pr)
		}
	}
	type hit struct {
		x     int32
		pr    price
		lower int64
	}
	raise := func(h *hit, maxFlows int) bool {
		c := p.second(h.x)
		l, pr, flows, ok := c.maximise(h.pr, enough-paid, maxFlows)
		p.work += int64(flows+2) * int64(len(c.net.to))
		h.lower, h.pr = l, pr
		b.lower = max(b.lower, paid+l)
		return ok
	}
	// One flow for each tells which are worth more.
	var hits []hit
	for k, x := range at {
		if p.state[x] != pathMust {
			continue
		}
		h := hit{x: x, pr: start[k]}
		if !raise(&h, 1) {
			return false
		}
		if b.lower >= enough {
			return true
		}
		hits = append(hits, h)
	}
	sort.SliceStable(hits, func(a, b int) bool { return hits[a].lower > hits[b].lower })
	hits = hits[:min(len(hits), pathMore)]
	for k := range hits {
		if !raise(&hits[k], pathFlows) {
			return false
		}
		if b.lower >= enough {
			return true
		}
	}
	sort.SliceStable(hits, func(a, b int) bool { return hits[a].lower > hits[b].lower })
	b.at, b.start = nil, nil
	for k := 0; k < len(hits) && k < pathBest; k++ {
		b.at, b.start = append(b.at, hits[k].x), append(b.start, hits[k].pr)
	}
	return true
}

// run returns a bound on cost beyond every node once, of at most enough. It
// branches on what is in memory at b, the largest buffer first, and looks at the
// branch with the least bound first. It stops after maxWork, or where the bound
// no longer rises.
func (p *pathCut) run(guess float64, enough, maxWork int64, stop func() bool) int64 {
	bySize := make([]int32, len(p.first.mems))
	for i := range bySize {
		bySize[i] = int32(i)
	}
	size := func(i int32) int64 { return p.m.size[p.first.mems[i].id] }
	sort.SliceStable(bySize, func(a, b int) bool { return size(bySize[a]) > size(bySize[b]) })
	root := &pathBranch{edge: -1}
	clear(p.fix)
	if !p.bound(root, guess, enough) {
		return 0 // no plan fits at all, which is not what this function speaks about
	}
	open := pathHeap{root}
	count := int32(0)
	var floor, rose int64 // the bound, and the work done when it last rose by a thousandth
	for len(open) > 0 {
		b := open[0]
		if b.lower > floor+floor/1000 {
			floor, rose = b.lower, p.work
		}
		if b.lower >= enough || b.depth == len(bySize) || p.work > maxWork || p.work > maxWork/4+2*rose || stop() {
			return min(b.lower, enough)
		}
		heap.Pop(&open)
		for _, keep := range []bool{true, false} {
			count++
			child := &pathBranch{lower: b.lower, up: b, edge: bySize[b.depth], keep: keep, depth: b.depth + 1, seq: count, at: b.at, start: b.start}
			clear(p.fix)
			for a := child; a.up != nil; a = a.up {
				p.fix[a.edge] = -1
				if a.keep {
					p.fix[a.edge] = 1
				}
			}
			if p.bound(child, guess, enough) && child.lower < enough {
				heap.Push(&open, child)
			}
		}
	}
	return enough
}

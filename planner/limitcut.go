package planner

import "math/bits"

// limitNet is the choice of what to keep of limited values as a minimum cut: with a price on each of their bytes instead of the
// limits, the cheapest choice is one cut, and prices are raised until it fits.
//
// Network, for each gate (source side is true):
//
//	r_x  node x runs behind the gate (the source, if that is its place)
//	a_u  buffer u, made before the gate, is to be had behind it
//
//	r_x → a_u   unbounded      u an input of x
//	a_u → r_x   price·weight   u an output of x: kept across the gate (unbounded where it may not be)
//	r_x → sink  cost           x is computed again (unbounded where it may not be)
//
// With the places that nodes have in the order of the problem this is what Obey does, of one gate to the last byte. With
// those alone that they have in every order, ancestors of the gate before it and descendants behind, it relaxes every plan:
// what a descendant reads of an ancestor is kept or computed twice. So the value of a cut, less what the limits are
// worth at its prices, is a lower bound on the cost of plans beyond every node once.
type limitNet struct {
	c     *chooser
	net   *flowNet
	keeps []capEdge // a_u → r_x, id is the buffer
	costs []capEdge // id is the node
	q     int64     // scale of costs: a price is p/q
	maxP  int64
	stays []bool  // by buffer: an output that is kept across a gate whatever is chosen
	room  []int64 // by limit: its bytes less those
	price []int64 // by limit
	tilt  []int64 // by buffer: so many parts in 4096 more is its price, so that what is alike need not all be kept or lost at once; nil: none
}

// newLimitNet builds the network of the gates at the given positions. before and behind say on which side of one a node is, stays
// which outputs are surely kept across one.
func newLimitNet(c *chooser, gates []int, before, behind func(g int, x int32) bool, stays []bool) *limitNet {
	m := c.m
	n := &limitNet{c: c, net: &flowNet{nodes: 2}, stays: stays, price: make([]int64, len(m.limit))}
	node := func() int32 {
		n.net.nodes++
		return int32(n.net.nodes - 1)
	}
	r, a := make([]int32, m.n), make([]int32, len(m.size))
	for _, g := range gates {
		for x := range r {
			r[x] = -1
			if behind(g, int32(x)) {
				r[x] = cutSource
			}
		}
		for b := range a {
			a[b] = -1
		}
		for k := len(m.order) - 1; k >= 0; k-- { // readers before what they read
			x := m.order[k]
			if r[x] < 0 {
				continue
			}
			for _, b := range m.ins[x] {
				y := m.prod[b]
				if !before(g, y) {
					continue
				}
				if a[b] < 0 {
					if r[y] < 0 {
						r[y] = node()
						n.costs = append(n.costs, capEdge{n.net.edge(r[y], cutSink, 0), y})
					}
					a[b] = node()
					n.keeps = append(n.keeps, capEdge{n.net.edge(a[b], r[y], 0), b})
				}
				n.net.edge(r[x], a[b], unbounded)
			}
		}
	}
	n.net.index()
	n.q = 1 << min(max(58-bits.Len64(uint64(max(m.base, 1)*int64(max(len(gates), 1)))), 0), 24)
	var most int64
	for k, w := range m.limit {
		room, sum := m.p.Limits[k].Bytes, int64(0)
		for b, s := range stays {
			if s {
				room -= w[b]
			}
			sum += w[b]
		}
		n.room = append(n.room, max(room, 0))
		most += sum
	}
	n.maxP = (unbounded / 4) / max(most*int64(max(len(gates), 1)), 1)
	return n
}

// at cuts at the prices of the limits, and returns the choice and a lower bound on the cost of any other that fits.
// ok is false where no choice at all computes what is read behind a gate.
func (n *limitNet) at() (keep []bool, lower int64, ok bool) {
	m, g := n.c.m, n.net
	for e := range g.cap {
		if e&1 == 0 {
			g.cap[e], g.cap[e+1] = unbounded, 0
		}
	}
	for _, e := range n.costs {
		if !m.once[e.id] {
			g.cap[e.edge] = n.q * m.cost[e.id]
		}
	}
	for _, e := range n.keeps {
		if n.c.lost[e.id] && !m.once[m.prod[e.id]] {
			continue
		}
		g.cap[e.edge] = 0
		for k, w := range m.limit {
			if !n.stays[e.id] {
				g.cap[e.edge] += n.price[k] * w[e.id]
				if n.tilt != nil {
					g.cap[e.edge] += n.price[k] * w[e.id] / 4096 * n.tilt[e.id]
				}
			}
		}
	}
	v := g.augment(cutSource, cutSink, unbounded)
	if v >= unbounded {
		return nil, 0, false
	}
	side := make([]bool, g.nodes)
	g.sourceSide(cutSource, side)
	keep = make([]bool, len(m.size))
	for _, e := range n.keeps {
		if side[g.from[e.edge]] && !side[g.to[e.edge]] {
			keep[e.id] = true
		}
	}
	for k, p := range n.price {
		hi, lo := bits.Mul64(uint64(p), uint64(n.room[k]))
		if hi > 0 || lo > uint64(v) {
			return keep, 0, true
		}
		v -= int64(lo)
	}
	return keep, (v + n.q - 1) / n.q, true
}

// priced looks for the price of limit k at which its part of the choice just fits, the other prices given, and calls seen with every choice
// on the way.
func (n *limitNet) priced(k int, seen func(keep []bool, lower int64)) {
	c := n.c
	type point struct{ p, cost, used int64 }
	look := func(p int64) (point, bool) {
		n.price[k] = p
		keep, lower, ok := n.at()
		if !ok {
			return point{}, false
		}
		d := c.eval(keep)
		at := point{p, d.cost, c.used[k]}
		seen(keep, lower)
		return at, true
	}
	over, ok := look(0)
	allowed := c.m.p.Limits[k].Bytes
	if !ok || over.used <= allowed {
		return
	}
	p := max(1, min(n.maxP, int64(float64(n.q)*float64(max(c.m.base, 1))/float64(over.used)/4)))
	var under point
	fits := false
	for range 24 {
		at, ok := look(p)
		if !ok {
			break
		}
		if at.used > allowed {
			over = at
		} else {
			under, fits = at, true
		}
		next := min(n.maxP, p*8)
		if fits {
			den, num := over.used-under.used, under.cost-over.cost
			if den <= 0 || num <= 0 {
				break
			}
			next = mulDiv(num, n.q, den)
			if next <= over.p || next >= under.p || n.tilt != nil { // tilted lines do not meet there
				next = over.p + (under.p-over.p)/2
			}
		}
		if next <= over.p || fits && next >= under.p {
			break
		}
		p = next
	}
	if fits {
		n.price[k] = under.p
	}
}

// cuts offers the choices of priced cuts, limit after limit, twice around where there are several.
func (n *limitNet) cuts(seen func(keep []bool, lower int64)) {
	if n.q < 1 || n.maxP < 1 {
		return
	}
	rounds := min(len(n.price), 2)
	for range rounds {
		for k := range n.price {
			n.priced(k, seen)
		}
	}
}

// byPlace is the network of the problem's own order, in which the buffers of each group, a layer as a rule, are a little dearer than those of the group
// before, or of the one behind.
func (c *chooser) byPlace(back bool) *limitNet {
	n := newLimitNet(c, c.gates,
		func(g int, x int32) bool { return c.place[x] < g },
		func(g int, x int32) bool { return c.place[x] > g }, c.stays)
	at := map[string]int64{}
	for _, x := range c.m.order {
		if g := c.m.p.Ops[c.m.op[x]].Group; at[g] == 0 {
			at[g] = int64(len(at) + 1)
		}
	}
	n.tilt = make([]int64, len(c.m.size))
	for b := range n.tilt {
		k := at[c.m.p.Ops[c.m.op[c.m.prod[b]]].Group]
		if back {
			k = int64(len(at)) - k
		}
		n.tilt[b] = k * 256 / int64(len(at))
	}
	return n
}

// bound is a lower bound on what any plan within the limits costs beyond every node once.
func (c *chooser) bound() int64 {
	k := newKin(c.m)
	var most int64
	for _, g := range c.gates {
		k.classify(c.m.order[g])
		kind := append([]uint8(nil), k.kind...)
		kind[c.m.order[g]] = kinFree         // what it makes itself is not made before it
		stays := make([]bool, len(c.m.size)) // an output that may be made behind the gate, or again, need not be
		for b, f := range c.m.final {
			y := c.m.prod[b]
			stays[b] = f && c.m.once[y] && kind[y] == kinBefore
		}
		n := newLimitNet(c, []int{g},
			func(_ int, x int32) bool { return kind[x] == kinBefore },
			func(_ int, x int32) bool { return kind[x] == kinAfter }, stays)
		n.cuts(func(_ []bool, lower int64) { most = max(most, lower) })
	}
	return most
}

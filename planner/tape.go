package planner

import "math"

// tape is a sequence of node instances in an array, for problems small enough
// that shifting a stretch of it is cheap. Where timeline keeps memory in a tree
// and applies a move to see what it gives, tape works out what a simple move
// (shift one instance, add one copy, remove one) would give by one loop over
// the stretch between the old place and the new, and changes something only if
// the move is taken. Most moves are not, so a second holds ten times as many.
//
// Optional in-place reuse is not counted, so memory is never less than the
// simulator says.
type tape struct {
	m    *model
	seq  []int32 // by position: instance
	mem  []int64 // by position: live bytes while it runs
	rel  []int64 // by position: bytes released right after it
	node []int32 // by instance
	pos  []int32 // by instance: position
	free []int32 // unused instances

	runs  [][]int32 // by node: instances, in order
	reads [][]int32 // by buffer: reading instances, in order
	bias  int64

	banned []bool // by node: may not be computed again

	events  []event
	touched []shift // what the move at hand changes in rel, by the position before it
}

// event says that from position at on, memory changes by d.
type event struct {
	at int32
	d  int64
}

type shift struct {
	at int32
	d  int64
}

// newTape lays out seq, which must be legal.
func newTape(m *model, seq []int32) *tape {
	t := &tape{m: m, runs: make([][]int32, m.n), reads: make([][]int32, len(m.size)), bias: m.views, banned: make([]bool, m.n)}
	n := len(seq)
	t.seq, t.pos, t.node = make([]int32, n), make([]int32, n), append([]int32(nil), seq...)
	for k, x := range seq {
		i := int32(k)
		t.seq[k], t.pos[k] = i, i
		t.runs[x] = append(t.runs[x], i)
		for _, u := range m.ins[x] {
			t.reads[u] = append(t.reads[u], i)
		}
		t.bias += m.bias[x]
	}
	t.measure()
	return t
}

// measure computes mem and rel from scratch.
func (t *tape) measure() {
	m := t.m
	n := len(t.seq)
	t.mem, t.rel = append(t.mem[:0], make([]int64, n)...), append(t.rel[:0], make([]int64, n)...)
	for x := range t.runs {
		for j := range t.runs[x] {
			for _, u := range m.outs[x] {
				if e := t.end(u, j); e < int32(n) {
					t.rel[e] += m.size[u]
				}
			}
		}
	}
	live := m.resident
	for k, i := range t.seq {
		x := t.node[i]
		live += t.made(x)
		t.mem[k] = live + m.work[x]
		live -= t.rel[k]
	}
}

func (t *tape) made(x int32) int64 {
	var s int64
	for _, u := range t.m.outs[x] {
		s += t.m.size[u]
	}
	return s
}

// before returns how many instances of list are at positions below p.
func (t *tape) before(list []int32, p int32) int {
	n := len(list)
	if n <= 8 {
		for n > 0 && t.pos[list[n-1]] >= p {
			n--
		}
		return n
	}
	lo, hi := 0, n
	for lo < hi {
		mid := (lo + hi) / 2
		if t.pos[list[mid]] < p {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// end returns the position of the last use of the j-th instance of buffer u, or
// the length of the sequence if it lives to the end.
func (t *tape) end(u int32, j int) int32 {
	runs, reads := t.runs[t.m.prod[u]], t.reads[u]
	k := len(reads)
	if j+1 < len(runs) {
		k = t.before(reads, t.pos[runs[j+1]])
	} else if t.m.final[u] {
		return int32(len(t.seq))
	}
	start := t.pos[runs[j]]
	if k > 0 {
		if p := t.pos[reads[k-1]]; p > start {
			return p
		}
	}
	return start
}

// otherEnd is end without the reader at position p.
func (t *tape) otherEnd(u int32, j int, p int32) int32 {
	runs, reads := t.runs[t.m.prod[u]], t.reads[u]
	k := len(reads)
	if j+1 < len(runs) {
		k = t.before(reads, t.pos[runs[j+1]])
	} else if t.m.final[u] {
		return int32(len(t.seq))
	}
	start := t.pos[runs[j]]
	for k > 0 {
		q := t.pos[reads[k-1]]
		if q == p {
			k--
			continue
		}
		return max(q, start)
	}
	return start
}

// event adds d to memory from position at on, in the plan of a move.
func (t *tape) event(at int32, d int64) {
	if d == 0 {
		return
	}
	k := len(t.events)
	t.events = append(t.events, event{})
	for k > 0 && t.events[k-1].at > at {
		t.events[k] = t.events[k-1]
		k--
	}
	t.events[k] = event{at, d}
}

// stretch returns by how much what exceeds limit grows over positions up to
// last, by the events.
func (t *tape) stretch(last int32, limit int64) int64 {
	var grown, d int64
	for k := 0; k < len(t.events); {
		p := t.events[k].at
		for k < len(t.events) && t.events[k].at == p {
			d += t.events[k].d
			k++
		}
		q := last + 1
		if k < len(t.events) && t.events[k].at < q {
			q = t.events[k].at
		}
		if d == 0 || p >= q {
			continue
		}
		if d > 0 {
			for _, b := range t.mem[p:q] {
				b -= limit
				if b+d > 0 {
					grown += b + d - max(b, 0)
				}
			}
		} else {
			for _, b := range t.mem[p:q] {
				b -= limit
				if b > 0 {
					grown -= b - max(b+d, 0)
				}
			}
		}
	}
	return grown
}

// bounds returns the positions between which (both excluded) the instance at
// position p may go without changing what reads what.
func (t *tape) bounds(p int32) (lo, hi int32) {
	m := t.m
	i := t.seq[p]
	x := t.node[i]
	lo, hi = -1, int32(len(t.seq))
	for _, u := range m.ins[x] {
		r := t.runs[m.prod[u]]
		if len(r) == 1 {
			lo = max(lo, t.pos[r[0]])
			continue
		}
		k := t.before(r, p)
		lo = max(lo, t.pos[r[k-1]])
		if k < len(r) {
			hi = min(hi, t.pos[r[k]])
		}
	}
	own := t.runs[x]
	j := 0
	if len(own) > 1 {
		j = t.before(own, p)
		if j > 0 {
			lo = max(lo, t.pos[own[j-1]])
		}
		if j+1 < len(own) {
			hi = min(hi, t.pos[own[j+1]])
		}
	}
	for _, u := range m.outs[x] {
		r := t.reads[u]
		k := t.before(r, p)
		if k < len(r) {
			hi = min(hi, t.pos[r[k]])
		}
		if j > 0 && k > 0 {
			lo = max(lo, t.pos[r[k-1]])
		}
	}
	for _, y := range m.ctrl[x] {
		lo = max(lo, t.pos[t.runs[y][0]])
	}
	for _, y := range m.since[x] {
		r := t.runs[y]
		lo = max(lo, t.pos[r[len(r)-1]])
	}
	for _, y := range m.ctrlr[x] {
		hi = min(hi, t.pos[t.runs[y][0]])
	}
	for _, w := range m.until[x] {
		hi = min(hi, t.pos[t.runs[w][0]])
	}
	return lo, hi
}

func over(b, limit int64) int64 { return max(b-limit, 0) }

// tryMove plans moving the instance at position p to position q, within
// bounds, and returns by how much the excess over limit grows, and what memory
// the instance will see.
func (t *tape) tryMove(p, q int32, limit int64) (grown, mem int64) {
	m := t.m
	i := t.seq[p]
	x := t.node[i]
	t.events, t.touched = t.events[:0], t.touched[:0]
	j := 0
	if own := t.runs[x]; len(own) > 1 {
		j = t.before(own, p)
	}
	var rel int64 // what the instance releases at its new place
	if q > p {
		y := t.node[t.seq[q]]
		live := t.mem[q] - m.work[y] - t.rel[q] // after the node at q, as things are
		for _, u := range m.outs[x] {
			size := m.size[u]
			if t.end(u, j) > p {
				t.event(p+1, -size)
			} else {
				rel += size
				live += size // not there now, but while the instance runs
			}
		}
		for _, u := range m.ins[x] {
			size := m.size[u]
			if size == 0 {
				continue
			}
			k := 0
			if r := t.runs[m.prod[u]]; len(r) > 1 {
				k = t.before(r, p) - 1
			}
			e := t.end(u, k)
			if e > q {
				continue
			}
			t.event(e+1, size)
			rel += size
			live += size
			if e > p {
				t.touched = append(t.touched, shift{e, -size})
			}
		}
		mem = live + m.work[x]
		grown = t.stretch(q, limit)
	} else {
		live := m.resident
		if q > 0 {
			live = t.mem[q-1] - m.work[t.node[t.seq[q-1]]] - t.rel[q-1]
		}
		for _, u := range m.outs[x] {
			size := m.size[u]
			live += size
			if t.end(u, j) > p {
				t.event(q, size)
			} else {
				rel += size
			}
		}
		for _, u := range m.ins[x] {
			size := m.size[u]
			if size == 0 {
				continue
			}
			k := 0
			if r := t.runs[m.prod[u]]; len(r) > 1 {
				k = t.before(r, p) - 1
			}
			if t.end(u, k) != p {
				continue
			}
			e := t.otherEnd(u, k, p)
			if e >= q {
				t.event(e+1, -size)
				t.touched = append(t.touched, shift{e, size})
			} else {
				t.event(q, -size)
				rel += size
			}
		}
		mem = live + m.work[x]
		grown = t.stretch(p-1, limit)
	}
	grown += over(mem, limit) - over(t.mem[p], limit)
	t.touched = append(t.touched, shift{p, rel - t.rel[p]})
	return grown, mem
}

// apply changes mem and rel by the events up to last and by touched.
func (t *tape) apply(last int32) {
	var d int64
	for k := 0; k < len(t.events); {
		p := t.events[k].at
		for k < len(t.events) && t.events[k].at == p {
			d += t.events[k].d
			k++
		}
		q := last + 1
		if k < len(t.events) && t.events[k].at < q {
			q = t.events[k].at
		}
		if d != 0 && p < q {
			s := t.mem[p:q]
			for k := range s {
				s[k] += d
			}
		}
	}
	for _, c := range t.touched {
		t.rel[c.at] += c.d
	}
}

// move does what tryMove has planned.
func (t *tape) move(p, q int32, mem int64) {
	i := t.seq[p]
	if q > p {
		t.apply(q)
		r := t.rel[p]
		copy(t.seq[p:q], t.seq[p+1:q+1])
		copy(t.mem[p:q], t.mem[p+1:q+1])
		copy(t.rel[p:q], t.rel[p+1:q+1])
		for k := p; k < q; k++ {
			t.pos[t.seq[k]] = k
		}
		t.seq[q], t.mem[q], t.rel[q], t.pos[i] = i, mem, r, q
	} else {
		t.apply(p - 1)
		r := t.rel[p]
		copy(t.seq[q+1:p+1], t.seq[q:p])
		copy(t.mem[q+1:p+1], t.mem[q:p])
		copy(t.rel[q+1:p+1], t.rel[q:p])
		for k := q + 1; k <= p; k++ {
			t.pos[t.seq[k]] = k
		}
		t.seq[q], t.mem[q], t.rel[q], t.pos[i] = i, mem, r, q
	}
	for _, u := range t.m.ins[t.node[i]] {
		t.settle(t.reads[u], i)
	}
}

// settle brings instance i, which has moved, to its place in an ordered list.
func (t *tape) settle(list []int32, i int32) {
	if len(list) < 2 {
		return
	}
	k := 0
	for list[k] != i {
		k++
	}
	for k > 0 && t.pos[list[k-1]] > t.pos[i] {
		list[k] = list[k-1]
		k--
	}
	for k+1 < len(list) && t.pos[list[k+1]] < t.pos[i] {
		list[k] = list[k+1]
		k++
	}
	list[k] = i
}

// mayAdd reports whether node y may run at position p, where all it reads has
// been computed.
func (t *tape) mayAdd(y, p int32) bool {
	if t.m.once[y] || t.banned[y] {
		return false
	}
	for _, w := range t.m.until[y] {
		if t.pos[t.runs[w][0]] < p {
			return false
		}
	}
	return true
}

// tryAdd plans a copy of node y right before position p. y must have run
// before.
func (t *tape) tryAdd(y, p int32, limit int64) (grown, mem, rel int64) {
	m := t.m
	t.events, t.touched = t.events[:0], t.touched[:0]
	var live int64 = m.resident
	if p > 0 {
		live = t.mem[p-1] - m.work[t.node[t.seq[p-1]]] - t.rel[p-1]
	}
	j := t.before(t.runs[y], p) - 1
	for _, u := range m.outs[y] {
		size := m.size[u]
		live += size
		if size == 0 {
			continue
		}
		if t.end(u, j) < p {
			rel += size
			continue
		}
		e := t.pos[t.runs[y][j]]
		if k := t.before(t.reads[u], p); k > 0 {
			e = max(e, t.pos[t.reads[u][k-1]])
		}
		live -= size
		t.event(e+1, -size)
		t.touched = append(t.touched, shift{e, size})
	}
	for _, w := range m.ins[y] {
		size := m.size[w]
		if size == 0 {
			continue
		}
		k := 0
		if r := t.runs[m.prod[w]]; len(r) > 1 {
			k = t.before(r, p) - 1
		}
		e := t.end(w, k)
		if e >= p {
			continue
		}
		live += size
		rel += size
		t.event(e+1, size)
		t.touched = append(t.touched, shift{e, -size})
	}
	mem = live + m.work[y]
	return t.stretch(p-1, limit) + over(mem, limit), mem, rel
}

// add does what tryAdd has planned and returns the new instance.
func (t *tape) add(y, p int32, mem, rel int64) int32 {
	t.apply(p - 1)
	var i int32
	if k := len(t.free); k > 0 {
		i = t.free[k-1]
		t.free = t.free[:k-1]
		t.node[i] = y
	} else {
		i = int32(len(t.node))
		t.node = append(t.node, y)
		t.pos = append(t.pos, 0)
	}
	n := len(t.seq)
	t.seq = append(t.seq, 0)
	t.mem = append(t.mem, 0)
	t.rel = append(t.rel, 0)
	copy(t.seq[p+1:], t.seq[p:n])
	copy(t.mem[p+1:], t.mem[p:n])
	copy(t.rel[p+1:], t.rel[p:n])
	t.seq[p], t.mem[p], t.rel[p] = i, mem, rel
	for k := int(p); k <= n; k++ {
		t.pos[t.seq[k]] = int32(k)
	}
	t.runs[y] = insertAt(t.runs[y], t.before(t.runs[y], p), i)
	for _, u := range t.m.ins[y] {
		t.reads[u] = insertAt(t.reads[u], t.before(t.reads[u], p), i)
	}
	t.bias += t.m.bias[y]
	return i
}

// tryRemove plans the removal of the instance at position p, one of several of
// its node. ok is false if a reader would be left without an input.
func (t *tape) tryRemove(p int32, limit int64) (grown int64, ok bool) {
	m := t.m
	t.events, t.touched = t.events[:0], t.touched[:0]
	x := t.node[t.seq[p]]
	j := t.before(t.runs[x], p)
	for _, u := range m.outs[x] {
		size := m.size[u]
		if t.end(u, j) == p {
			continue // idle
		}
		if j == 0 {
			return 0, false
		}
		if size == 0 {
			continue
		}
		e := t.end(u, j-1)
		t.event(e+1, size)
		t.touched = append(t.touched, shift{e, -size})
	}
	for _, w := range m.ins[x] {
		size := m.size[w]
		if size == 0 {
			continue
		}
		k := 0
		if r := t.runs[m.prod[w]]; len(r) > 1 {
			k = t.before(r, p) - 1
		}
		if t.end(w, k) != p {
			continue
		}
		e := t.otherEnd(w, k, p)
		t.event(e+1, -size)
		t.touched = append(t.touched, shift{e, size})
	}
	return t.stretch(p-1, limit) - over(t.mem[p], limit), true
}

// remove does what tryRemove has planned.
func (t *tape) remove(p int32) {
	t.apply(p - 1)
	i := t.seq[p]
	x := t.node[i]
	t.runs[x] = removeAt(t.runs[x], t.before(t.runs[x], p))
	for _, u := range t.m.ins[x] {
		t.reads[u] = removeAt(t.reads[u], t.before(t.reads[u], p))
	}
	n := len(t.seq) - 1
	copy(t.seq[p:], t.seq[p+1:])
	copy(t.mem[p:], t.mem[p+1:])
	copy(t.rel[p:], t.rel[p+1:])
	t.seq, t.mem, t.rel = t.seq[:n], t.mem[:n], t.rel[:n]
	for k := int(p); k < n; k++ {
		t.pos[t.seq[k]] = int32(k)
	}
	t.free = append(t.free, i)
	t.bias -= t.m.bias[x]
}

// idle reports whether nothing reads what the instance at position p makes.
func (t *tape) idle(p int32) bool {
	x := t.node[t.seq[p]]
	j := t.before(t.runs[x], p)
	for _, u := range t.m.outs[x] {
		if t.end(u, j) != p {
			return false
		}
	}
	return true
}

// nodes returns the sequence.
func (t *tape) nodes() []int32 {
	s := make([]int32, len(t.seq))
	for k, i := range t.seq {
		s[k] = t.node[i]
	}
	return s
}

// excess adds up what the positions have beyond limit.
func (t *tape) excess(limit int64) int64 {
	var s int64
	for _, b := range t.mem {
		s += over(b, limit)
	}
	return s
}

// taper anneals a tape. Two temperatures fall together, one for cost and one
// for bytes over the limit: their ratio is the price of a byte at one position.
type taper struct {
	t     *tape
	rng   rng
	limit int64

	over     int64   // the excess
	best     []int32 // cheapest sequence within the limit, or nil
	bestBias int64
	lowest   []int32 // the last sequence, if nothing fitted

	still bool    // instances are moved only: none is added or removed
	deep  bool    // some of the copies added come with copies of what they read
	added []int32 // by the move at hand: instances
}

// cooling says how a taper cools: temperatures for cost in parts of the mean
// cost of a node, those for memory in parts of the mean size of a buffer at one
// position.
type cooling struct{ hotCost, coldCost, hotBytes, coldBytes float64 }

// coolings are starts for different kinds of need: the hotter, the more
// recomputation there is in a good plan. Cold bytes are few, so that the last
// part squeezes out what is still over the limit.
var coolings = [...]cooling{
	{0.1, 0.01, 3, 0.01},
	{1, 0.003, 10, 0.0003},
	{3, 0.003, 10, 0.0003},
}

// gentle is for what a cut has chosen to compute again: copies are never cheap, so they stay and the dear ones do not
// crowd in, while bytes are cheap enough for the order to follow.
var gentle = cooling{0.03, 0.01, 1, 0.01}

// warmth lets a plan rearrange itself around what was taken out of it, and no more.
var warmth = cooling{0.06, 0.01, 1, 0.01}

func newTaper(m *model, seq []int32, limit int64, seed uint64) *taper {
	a := &taper{t: newTape(m, seq), rng: rng(seed), limit: limit, bestBias: math.MaxInt64}
	a.over = a.t.excess(limit)
	a.note()
	return a
}

func (a *taper) note() {
	if a.over == 0 && a.t.bias < a.bestBias {
		a.best, a.bestBias = a.t.nodes(), a.t.bias
	}
}

// anneal cools down once, and if that ends over the limit goes on at ever
// higher prices, for at most a third more moves.
func (a *taper) anneal(moves int64, c cooling, stop func() bool) int64 {
	m := a.t.m
	cost := float64(max(m.base, 1)) / float64(max(m.n, 1))
	size := a.meanSize()
	cold := c.coldBytes * size
	done := a.run(moves, c.hotCost*cost, c.coldCost*cost, c.hotBytes*size, cold, stop)
	for k := 0; k < 3 && a.best == nil && !stop(); k++ {
		done += a.run(moves/9, c.coldCost*cost, c.coldCost*cost, cold, cold/10, stop)
		cold /= 10
	}
	if a.best == nil {
		a.lowest = a.t.nodes()
	}
	return done
}

// meanSize is the mean size of a buffer.
func (a *taper) meanSize() float64 {
	var bytes int64
	for _, s := range a.t.m.size {
		bytes += s
	}
	return float64(max(bytes, 1)) / float64(max(len(a.t.m.size), 1))
}

// follow anneals what a cut has chosen: first the order alone, with the cut's copies as they are, then all.
func (a *taper) follow(moves int64, stop func() bool) int64 {
	size := a.meanSize()
	a.still = true
	done := a.run(moves*35/100, 1, 1, 10*size, gentle.hotBytes*size, stop)
	a.still = false
	a.deep = true
	return done + a.anneal(moves-moves*35/100, gentle, stop)
}

// run makes moves while the temperatures, in units of cost and in bytes at one
// position, fall from hot to cold.
func (a *taper) run(moves int64, hot, cold, hotBytes, coldBytes float64, stop func() bool) int64 {
	t, m := a.t, a.t.m
	if len(t.seq) == 0 {
		return 0
	}
	perCost, perByte := 1/hot, 1/hotBytes
	var done int64
	take := func(dCost, grown int64) bool {
		e := float64(dCost)*perCost + float64(grown)*perByte
		return e <= 0 || a.rng.float() < math.Exp(-e)
	}
	var next int64 // when to look at the time
	for ; done < moves; done++ {
		if done >= next {
			next = done + 256
			if stop() {
				break
			}
			f := float64(done) / float64(moves)
			perCost = math.Pow(hot/cold, f) / hot
			perByte = math.Pow(hotBytes/coldBytes, f) / hotBytes
		}
		n := len(t.seq)
		r := a.rng.next()
		kind := r & 15
		p := int32((r >> 32) * uint64(n) >> 32)
		switch {
		case kind < 8: // shift an instance
			lo, hi := t.bounds(p)
			room := hi - lo - 2
			if room <= 0 {
				continue
			}
			var q int32
			switch k := a.rng.next(); k & 7 {
			case 0:
				q = lo + 1
			case 1:
				q = hi - 1
			case 2, 3, 4:
				d := 1 + int32(k>>8&7)
				if k>>16&1 == 0 {
					d = -d
				}
				q = min(max(p+d, lo+1), hi-1)
			default:
				q = lo + 1 + int32(a.rng.intn(int(room+1)))
			}
			if q == p {
				continue
			}
			grown, mem := t.tryMove(p, q, a.limit)
			if !take(0, grown) {
				continue
			}
			t.move(p, q, mem)
			a.over += grown
		case a.still:
		case kind < 12: // compute an input of an instance again
			ins := m.ins[t.node[t.seq[p]]]
			if len(ins) == 0 {
				continue
			}
			u := ins[a.rng.intn(len(ins))]
			y := m.prod[u]
			if m.size[u] == 0 || !t.mayAdd(y, p) {
				continue
			}
			e := t.pos[t.runs[y][t.before(t.runs[y], p)-1]]
			if k := t.before(t.reads[u], p); k > 0 {
				e = max(e, t.pos[t.reads[u][k-1]])
			}
			if e >= p-1 {
				continue
			}
			if a.deep && r>>8&255 < 24 {
				c, grown := a.chain(y, p)
				done += 8 + 8*int64(len(a.added)) // shifting arrays takes that much longer
				if take(c, grown) {
					a.over += grown
				} else {
					a.unchain()
				}
				break
			}
			grown, mem, rel := t.tryAdd(y, p, a.limit)
			if !take(m.bias[y], grown) {
				continue
			}
			t.add(y, p, mem, rel)
			a.over += grown
		default: // remove a copy
			x := t.node[t.seq[p]]
			for try := 0; len(t.runs[x]) < 2; try++ {
				if try == 32 {
					x = -1
					break
				}
				p = int32(a.rng.intn(n))
				x = t.node[t.seq[p]]
			}
			if x < 0 {
				continue
			}
			grown, ok := t.tryRemove(p, a.limit)
			if !ok || !take(-m.bias[x], grown) {
				continue
			}
			a.drop(p, grown)
		}
		if a.over == 0 && t.bias < a.bestBias {
			a.note()
		}
	}
	return done
}

// chain adds a copy of node y right before position p. Of what it reads and would have to be kept for it, some is
// computed again too, by the toss of a coin, and so on. The result is by how much cost and excess grow.
func (a *taper) chain(y, p int32) (cost, grown int64) {
	t, m := a.t, a.t.m
	a.added = a.added[:0]
	var add func(y, p int32)
	add = func(y, p int32) {
		g, mem, rel := t.tryAdd(y, p, a.limit)
		i := t.add(y, p, mem, rel)
		a.added = append(a.added, i)
		cost, grown = cost+m.bias[y], grown+g
		for _, w := range m.ins[y] {
			x, q := m.prod[w], t.pos[i]
			if m.size[w] == 0 || len(a.added) >= maxChain || a.rng.next()&1 == 0 {
				continue
			}
			if e := t.otherEnd(w, t.before(t.runs[x], q)-1, q); e < q-1 && t.mayAdd(x, q) {
				add(x, q)
			}
		}
	}
	add(y, p)
	return cost, grown
}

// maxChain bounds the copies that one move adds.
const maxChain = 12

// unchain takes back what chain has added.
func (a *taper) unchain() {
	for k := len(a.added) - 1; k >= 0; k-- {
		p := a.t.pos[a.added[k]]
		if _, ok := a.t.tryRemove(p, a.limit); !ok {
			panic("BUG: a copy just added can't be removed")
		}
		a.t.remove(p)
	}
}

// drop removes the instance at p, as planned, and then every copy that nothing
// reads any more.
func (a *taper) drop(p int32, grown int64) {
	t, m := a.t, a.t.m
	x := t.node[t.seq[p]]
	t.remove(p)
	a.over += grown
	for _, u := range m.ins[x] {
		y := m.prod[u]
		if len(t.runs[y]) < 2 {
			continue
		}
		k := t.before(t.runs[y], p) - 1
		if k < 0 {
			continue
		}
		q := t.pos[t.runs[y][k]]
		if !t.idle(q) {
			continue
		}
		if g, ok := t.tryRemove(q, a.limit); ok {
			n := len(t.seq)
			a.drop(q, g)
			p -= int32(n - len(t.seq)) // what followed has moved up
		}
	}
}

// ban removes every copy of node x but the first, as far as rules let it, and lets no other in.
func (a *taper) ban(x int32) {
	t := a.t
	t.banned[x] = true
	for len(t.runs[x]) > 1 {
		r := t.runs[x]
		p := t.pos[r[len(r)-1]]
		grown, ok := t.tryRemove(p, a.limit)
		if !ok {
			break
		}
		a.drop(p, grown)
	}
	a.best, a.bestBias = nil, math.MaxInt64
	a.note()
}

package planner

import "math"

// rng is splitmix64 (Steele, Lea, Flood 2014): small, fast, and the same on
// every machine.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func (r *rng) intn(n int) int { return int((r.next() >> 32) * uint64(n) >> 32) }

func (r *rng) float() float64 { return float64(r.next()>>11) / (1 << 53) }

// annealer improves a sequence by simulated annealing on its timeline. Moves
// that break a rule of the model are never made; memory over the limit is
// allowed at a price, so that sequences may pass through it.
type annealer struct {
	t     *timeline
	m     *model
	rng   rng
	limit int64

	alpha, beta float64 // prices of the peak and of the area over the limit

	best     []int32 // cheapest sequence within the limit, or nil
	bestBias int64
	lowest   []int32 // sequence with the smallest peak seen while nothing fits
	lowPeak  int64

	puts  int     // copies added by the move at hand
	books *ledger // nil without limits
	only  []int32 // nodes whose instances are moved; nil: all
}

const (
	moveRotate = iota
	moveNear
	moveRemove
	moveAdd
	moveSwap
	kinds
)

// mix says how often each kind of move is tried, in parts of their sum.
type mix [kinds]int

func newAnnealer(m *model, seq []int32, limit int64, seed uint64) *annealer {
	a := &annealer{t: newTimeline(m, seq), m: m, rng: rng(seed), limit: limit, alpha: 1, beta: 1,
		bestBias: math.MaxInt64, lowPeak: math.MaxInt64}
	if m.limit != nil {
		a.books = m.newLedger(a.t)
	}
	a.note()
	return a
}

// energy is what annealing minimises, in units of cost.
func (a *annealer) energy() float64 {
	e := float64(a.t.bias)
	if over := a.t.peak() - a.limit; over > 0 {
		base := float64(max(a.m.base, 1))
		lim := float64(max(a.limit, 1))
		e += base * a.alpha * float64(over) / lim
		if a.beta > 0 {
			e += base * a.beta * float64(a.t.tree.excess(a.limit)) / (lim * float64(a.t.slots))
		}
	}
	return e
}

// note remembers the current sequence if it is the best.
func (a *annealer) note() {
	peak := a.t.peak()
	if peak <= a.limit {
		if a.t.bias < a.bestBias {
			a.bestBias = a.t.bias
			a.best = a.t.sequence()
		}
	} else if a.best == nil && peak < a.lowPeak {
		a.lowPeak = peak
		a.lowest = a.t.sequence()
	}
}

// run makes moves, at temperatures that fall from hot to cold (in units of
// cost). stop is asked now and then.
func (a *annealer) run(moves int64, hot, cold float64, mx mix, stop func() bool) int64 {
	if a.t.count == 0 {
		return 0
	}
	hot, cold = max(hot, 1e-9), max(cold, 1e-10)
	var wheel [64]uint8
	turn := func(w mix) {
		sum, acc, k := 0, 0, 0
		for _, x := range w {
			sum += x
		}
		for kind, x := range w {
			acc += x
			for ; k < len(wheel)*acc/sum; k++ {
				wheel[k] = uint8(kind)
			}
		}
	}
	turn(mx)
	var tried, took [kinds]int64 // since the wheel was turned
	cur := a.energy()
	temp := hot
	// Long moves count for more, so that steps measure work.
	var done int64
	for turns := 0; done < moves; turns++ {
		done++
		if turns&255 == 0 {
			if stop() {
				break
			}
			temp = hot * math.Pow(cold/hot, float64(done)/float64(moves))
		}
		if turns&8191 == 8191 {
			// Moves that are hardly ever accepted are tried less often.
			w := mx
			for k := range w {
				w[k] *= 16
				if n := tried[k]; n >= 64 && took[k]*16 < n {
					w[k] = max(w[k]/8, int(int64(w[k])*took[k]*16/n))
				}
			}
			turn(w)
			tried, took = [kinds]int64{}, [kinds]int64{}
		}
		a.t.log = a.t.log[:0]
		kind := wheel[a.rng.next()>>58]
		made := false
		switch kind {
		case moveRotate:
			made = a.rotate()
		case moveNear:
			made = a.near()
		case moveRemove:
			made = a.removeCopy()
		case moveAdd:
			made = a.addCopy()
		default:
			made = a.swap()
		}
		tried[kind]++
		done += int64(len(a.t.log)) / 8
		if !made || a.dishonest() {
			if len(a.t.log) > 0 {
				a.t.undo(0)
			}
			continue
		}
		e := a.energy()
		if e <= cur || a.rng.float() < math.Exp((cur-e)/temp) {
			took[kind]++
			better := e < cur
			cur = e
			if better || a.best == nil {
				a.note()
			}
		} else {
			a.t.undo(0)
			a.restore()
		}
	}
	a.t.log = a.t.log[:0]
	return done
}

// instance picks an instance at random.
func (a *annealer) instance() int32 {
	if a.only != nil {
		r := a.t.runs[a.only[a.rng.intn(len(a.only))]]
		return r[a.rng.intn(len(r))]
	}
	for {
		i := int32(2 + a.rng.intn(len(a.t.node)-2))
		if a.t.at[a.t.slot[i]] == i {
			return i
		}
	}
}

// atOrBefore returns the last instance in a slot up to s.
func (a *annealer) atOrBefore(s int32) int32 {
	for s > 0 {
		if i := a.t.at[s]; i >= 0 {
			return i
		}
		s--
	}
	return head
}

// rotate moves an instance to anywhere between its inputs and its readers.
func (a *annealer) rotate() bool {
	t, m := a.t, a.m
	i := a.instance()
	x, s := t.node[i], t.slot[i]
	lo, hi := int32(0), t.slots-1
	for _, u := range m.ins[x] {
		r := t.runs[m.prod[u]]
		lo = max(lo, t.slot[r[t.before(r, s)-1]])
	}
	j := t.before(t.runs[x], s)
	if j+1 < len(t.runs[x]) {
		hi = t.slot[t.runs[x][j+1]]
	}
	for _, u := range m.outs[x] {
		r := t.reads[u]
		if k := t.before(r, s); k < len(r) {
			hi = min(hi, t.slot[r[k]])
		}
	}
	var target int32
	switch a.rng.intn(4) {
	case 0:
		target = lo
	case 1:
		target = hi - 1
	default:
		target = lo + int32(a.rng.intn(int(max(hi-lo, 1))))
	}
	return t.move(i, a.atOrBefore(target)) >= 0
}

// near moves an instance by a few places.
func (a *annealer) near() bool {
	t := a.t
	i := a.instance()
	p := i
	d := 1 + a.rng.intn(6)
	if a.rng.next()&1 == 0 {
		for k := 0; k < d && t.next[p] != tail; k++ {
			p = t.next[p]
		}
	} else {
		for k := 0; k <= d && p != head; k++ {
			p = t.prev[p]
		}
	}
	return t.move(i, p) >= 0
}

// removeCopy removes one of several instances of a node, and what only it
// needed.
func (a *annealer) removeCopy() bool {
	t := a.t
	for try := 0; try < 24; try++ {
		i := a.instance()
		if len(t.runs[t.node[i]]) > 1 && t.canTake(i) {
			a.takeAll(i)
			return true
		}
	}
	return false
}

// takeAll removes instance i and then every copy that nothing reads any more.
func (a *annealer) takeAll(i int32) {
	t, m := a.t, a.m
	x, s := t.node[i], t.slot[i]
	t.take(i)
	for _, u := range m.ins[x] {
		y := m.prod[u]
		r := t.runs[y]
		if len(r) < 2 {
			continue
		}
		if k := t.before(r, s) - 1; k >= 0 && t.idle(r[k]) && t.canTake(r[k]) {
			a.takeAll(r[k])
		}
	}
}

// addCopy computes an input of an instance again, right before it.
func (a *annealer) addCopy() bool {
	t, m := a.t, a.m
	for try := 0; try < 16; try++ {
		r := a.instance()
		ins := m.ins[t.node[r]]
		if len(ins) == 0 {
			continue
		}
		u := ins[a.rng.intn(len(ins))]
		y := m.prod[u]
		if m.once[y] || m.size[u] == 0 {
			continue
		}
		// There must be a stretch without a use before r.
		s := t.slot[r]
		last := t.slot[t.runs[y][t.before(t.runs[y], s)-1]]
		if k := t.before(t.reads[u], s); k > 0 {
			last = max(last, t.slot[t.reads[u][k-1]])
		}
		if last == t.slot[t.prev[r]] {
			continue
		}
		return a.drop(u, r)
	}
	return false
}

// drop computes buffer u again right before its reader r, with what that needs,
// and removes the earlier instance if nothing else read it.
func (a *annealer) drop(u, r int32) bool {
	t, m := a.t, a.m
	y := m.prod[u]
	runs := t.runs[y]
	old := runs[t.before(runs, t.slot[r])-1]
	a.puts = 0
	if !a.again(y, r, 0) {
		return false
	}
	if t.canTake(old) && t.idle(old) {
		a.takeAll(old)
	}
	return true
}

// again puts a copy of y right before instance r. Inputs that are not in memory
// there are kept from their last use if that fits, or computed again too.
func (a *annealer) again(y, r int32, depth int) bool {
	t, m := a.t, a.m
	if a.puts >= maxPuts || !t.canPut(y, t.prev[r]) {
		return false
	}
	for _, u := range m.ins[y] {
		s := t.slot[r]
		x := m.prod[u]
		k := t.before(t.runs[x], s) - 1
		e := t.end(u, k)
		if e >= t.slot[t.prev[r]] || m.size[u] == 0 {
			continue
		}
		if !m.once[x] {
			fits := t.tree.over(e+1, s)+m.size[u] <= a.limit
			coin := a.rng.next() & 7
			if (!fits && coin != 0) || (fits && coin == 0) {
				if !a.again(x, r, depth+1) && depth > 0 {
					return false
				}
			}
		}
	}
	if !t.canPut(y, t.prev[r]) {
		return false
	}
	t.put(y, t.prev[r])
	a.puts++
	return true
}

// maxPuts bounds the copies that one move adds: where inputs are many and
// nothing fits, what must be computed again grows exponentially.
const maxPuts = 24

// swap removes a copy and, if that needs memory, finds something else to drop.
func (a *annealer) swap() bool {
	if !a.removeCopy() {
		return false
	}
	for round := 0; round < 4 && a.t.peak() > a.limit; round++ {
		if !a.relieve() {
			return false
		}
	}
	return true
}

// relieve lowers the memory at the peak by dropping a buffer that idles there.
func (a *annealer) relieve() bool {
	t, m := a.t, a.m
	s := t.tree.argmax(a.rng.next()&1 == 0)
	over := t.peak() - a.limit
	bestU, bestR := int32(-1), int32(-1)
	bestScore := math.Inf(1)
	found := 0
	for try := 0; try < 96 && found < 5; try++ {
		i := a.instance()
		if t.slot[i] >= s {
			continue
		}
		x := t.node[i]
		if m.once[x] || len(m.outs[x]) == 0 {
			continue
		}
		u := m.outs[x][0]
		if n := len(m.outs[x]); n > 1 {
			u = m.outs[x][a.rng.intn(n)]
		}
		k := t.before(t.runs[x], s) - 1
		if m.size[u] == 0 || t.runs[x][k] != i || t.end(u, k) <= s {
			continue
		}
		reads := t.reads[u]
		n := t.before(reads, s)
		if n == len(reads) || t.slot[reads[n]] == s {
			continue
		}
		found++
		score := (float64(m.bias[x]) + 0.01) / float64(min(m.size[u], over)) * (0.5 + a.rng.float())
		if score < bestScore {
			bestScore, bestU, bestR = score, u, reads[n]
		}
	}
	if bestU < 0 {
		return false
	}
	return a.drop(bestU, bestR)
}

package pack

import (
	"math"
	"slices"
)

const (
	mendForce  = 0.5   // share of the changes that begin by giving a block a place that others have
	mendPush   = 0.1   // share of the changes before which all blocks are pushed up or down
	mendWindow = 5     // blocks that a change takes out beside these, at most
	mendBlame  = 0.003 // what a block is worth more, of its value, for each change that leaves it out
	mendHeat   = 0.5   // of the mean value: how much a change may worsen a layout
	mendNoise  = 0.2   // of what blocks are ordered by
	mendDoubt  = 0.3   // of what places are compared by
	mendSoft   = 0.05  // of the most bytes in use: the slack at which a section counts as an eighth of a full one
	mendLeast  = 250   // changes for each block without which it is not worth while
	mendCost   = 90    // blocks for which a change counts as one placement
)

// spot is a block that has a place.
type spot struct {
	off, end int64
	lo, hi   int32 // its sections
	block    int32
}

// mender is a layout under a cap from which blocks are left out, and what has been learnt of them.
type mender struct {
	*searcher
	dice  // its own, so that what it finds does not depend on what was tried before
	cap   int64
	value []float64 // by block: what a layout without it loses; 1 on average at first, and more for each change that leaves it out
	more  []float64 // by block: that increase
	spots []spot    // what has a place, by offset
	out   []int32   // what has none

	// What the last change began with, and scratch.
	oldSpots []spot
	oldOut   []int32
	edge     []int64   // by section
	list     []spot    // in the way of a block, by offset
	ends     []spot    // the same, by end
	key      []float64 // by block
}

func newMender(s *searcher, cap int64) *mender {
	n := len(s.items)
	m := &mender{searcher: s, dice: 1, cap: cap, value: make([]float64, n), more: make([]float64, n), key: make([]float64, n), edge: make([]int64, len(s.in))}
	var most int64
	for k, list := range s.in {
		for _, i := range list {
			m.edge[k] += s.items[i].Size
		}
		most = max(most, m.edge[k])
	}
	sum := 0.0
	for i, it := range s.items {
		if it.Size == 0 {
			continue
		}
		// What is in use where there is no room to spare has to lie there first.
		slack := float64(most-slices.Max(m.edge[s.lo[i]:s.hi[i]+1])) / float64(most)
		tight := mendSoft / (mendSoft + slack)
		m.value[i] = math.Sqrt(float64(it.Size)*(float64(it.End-it.Start)+1)) * tight * tight * tight
		sum += m.value[i]
		m.out = append(m.out, int32(i))
	}
	for i := range m.value {
		m.value[i] *= float64(len(m.out)) / sum
		m.more[i] = mendBlame * m.value[i]
	}
	return m
}

// mends reports whether so many steps allow the changes that mending takes: it finds little with fewer.
func (s *searcher) mends(steps int64) bool {
	n := int64(len(s.items))
	return steps*mendCost/(n+mendCost) >= mendLeast*n
}

// mend looks for a layout within cap, and goes on where the last call ended if that had the same cap. It keeps a
// layout from which blocks are left out, and changes it: a block that is out takes the place where what it drives out
// is worth least, or none; a few blocks near it that are in use at one time are taken out; then all that is out
// goes where it has room, in an order and by a rule drawn by lot. The change is kept unless what is out is worth too
// much more than before, and blocks that stay out are worth more and more.
func (s *searcher) mend(cap, steps int64) (off []int64, used int64) {
	m := s.mender
	if m == nil || m.cap != cap {
		m = newMender(s, cap)
		s.mender = m
		m.recreate()
	}
	work, each := int64(0), int64(len(s.items))+mendCost
	for n := 0; len(m.out) > 0; n++ {
		if used = work / mendCost; used >= steps || n%256 == 0 && s.stop != nil && s.stop() {
			return nil, used
		}
		work += each
		m.oldSpots = append(m.oldSpots[:0], m.spots...)
		m.oldOut = append(m.oldOut[:0], m.out...)
		if m.random() < mendPush {
			m.push(m.random() < 0.5)
		}
		m.ruin()
		m.recreate()
		if m.worth(m.out) < m.worth(m.oldOut)-mendHeat*math.Log(m.random()+1e-12) {
			for _, i := range m.out {
				m.value[i] += m.more[i]
			}
			continue
		}
		m.spots, m.oldSpots = m.oldSpots, m.spots
		m.out, m.oldOut = m.oldOut, m.out
	}
	off = make([]int64, len(s.items))
	for _, p := range m.spots {
		off[p.block] = p.off
	}
	return off, used
}

// worth is what blocks are worth together.
func (m *mender) worth(out []int32) float64 {
	sum := 0.0
	for _, i := range out {
		sum += m.value[i]
	}
	return sum
}

// insert gives a block a place.
func (m *mender) insert(i int32, off int64) {
	k := len(m.spots)
	m.spots = append(m.spots, spot{})
	for ; k > 0 && m.spots[k-1].off > off; k-- {
		m.spots[k] = m.spots[k-1]
	}
	m.spots[k] = spot{off, off + m.items[i].Size, m.lo[i], m.hi[i], i}
}

// Rules by which a block chooses among the gaps that it fits into.
const (
	lowestGap = iota
	highestGap
	tightestGap
	gapRules
)

// room is an offset at which block i has room, −1 if there is none.
func (m *mender) room(i int32, rule int) int64 {
	lo, hi, size, align := int64(m.lo[i]), int64(m.hi[i]), m.items[i].Size, m.items[i].Align
	top, at, least := int64(0), int64(-1), int64(math.MaxInt64)
	for k := range m.spots {
		// Without branches, which would be a coin's toss each: what is in use at other times lies at 0.
		p := &m.spots[k]
		meets := ((int64(p.lo) - hi - 1) & (lo - int64(p.hi) - 1)) >> 63
		from, to := top, p.off&meets
		top = max(top, p.end&meets)
		if to-from < size {
			continue
		}
		a, b := alignUp(from, align), alignDown(to-size, align)
		if a > b {
			continue
		}
		switch {
		case rule == lowestGap:
			return a
		case rule == highestGap:
			at = b
		case to-from < least:
			least, at = to-from, a
			if m.random() < 0.5 {
				at = b
			}
		}
	}
	if a, b := alignUp(top, align), alignDown(m.cap-size, align); a <= b {
		switch {
		case rule == highestGap:
			at = b
		case rule == lowestGap || m.cap-top < least:
			at = a
		}
	}
	return at
}

// force is the offset at which what is in the way of block c is worth least, give or take; −1 if it fits nowhere.
func (m *mender) force(c int32) int64 {
	lo, hi, size, align := m.lo[c], m.hi[c], m.items[c].Size, m.items[c].Align
	list, ends := m.list[:0], m.ends[:0]
	for _, p := range m.spots {
		if p.hi < lo || hi < p.lo {
			continue
		}
		list = append(list, p)
		k := len(ends)
		ends = append(ends, p)
		for ; k > 0 && ends[k-1].end > p.end; k-- {
			ends[k] = ends[k-1]
		}
		ends[k] = p
	}
	m.list, m.ends = list, ends
	least, at := math.Inf(1), int64(-1)
	// Offsets are tried in ascending order, so that what is in the way changes by what begins and ends.
	var begun, ended int
	sum := 0.0
	try := func(o int64) {
		if o < 0 || o > m.cap-size {
			return
		}
		for ; begun < len(list) && list[begun].off < o+size; begun++ {
			sum += m.value[list[begun].block]
		}
		for ; ended < len(ends) && ends[ended].end <= o; ended++ {
			sum -= m.value[ends[ended].block]
		}
		if x := sum * (1 + mendDoubt*m.random()); x < least {
			least, at = x, o
		}
	}
	try(0)
	for k := range ends {
		try(alignUp(ends[k].end, align))
	}
	begun, ended, sum = 0, 0, 0
	for k := range list {
		try(alignDown(list[k].off-size, align))
	}
	try(alignDown(m.cap-size, align))
	return at
}

// push moves all blocks as far down or up as they can go, those first that others will lie against.
func (m *mender) push(up bool) {
	if up {
		for k := range m.edge {
			m.edge[k] = m.cap
		}
		for k := len(m.spots) - 1; k >= 0; k-- {
			p := &m.spots[k]
			edge := m.edge[p.lo : p.hi+1]
			size := p.end - p.off
			p.off = alignDown(slices.Min(edge)-size, m.items[p.block].Align)
			p.end = p.off + size
			for j := range edge {
				edge[j] = p.off
			}
		}
	} else {
		clear(m.edge)
		for k := range m.spots {
			p := &m.spots[k]
			edge := m.edge[p.lo : p.hi+1]
			size := p.end - p.off
			p.off = alignUp(slices.Max(edge), m.items[p.block].Align)
			p.end = p.off + size
			for j := range edge {
				edge[j] = p.end
			}
		}
	}
	for k := 1; k < len(m.spots); k++ {
		p := m.spots[k]
		j := k
		for ; j > 0 && m.spots[j-1].off > p.off; j-- {
			m.spots[j] = m.spots[j-1]
		}
		m.spots[j] = p
	}
}

// ruin begins a change: it takes blocks out, and may give one of those that were out a place.
func (m *mender) ruin() {
	pick := int(m.random() * float64(len(m.out)))
	c := m.out[pick]
	at, forced := int64(m.random()*float64(m.cap)), int32(-1)
	if m.random() < mendForce {
		if o := m.force(c); o >= 0 {
			m.out = slices.Delete(m.out, pick, pick+1)
			end := o + m.items[c].Size
			m.spots = slices.DeleteFunc(m.spots, func(p spot) bool {
				if p.off >= end || p.end <= o || p.hi < m.lo[c] || m.hi[c] < p.lo {
					return false
				}
				m.out = append(m.out, p.block)
				return true
			})
			m.insert(c, o)
			at, forced = o, c
		}
	}
	// The nearest blocks of those that are in use at some time of its life.
	time := m.lo[c] + int32(m.random()*float64(m.hi[c]-m.lo[c]+1))
	var near [mendWindow]int32
	var far [mendWindow]int64
	n, most := 0, 1+int(m.random()*mendWindow)
	for k := range m.spots {
		p := &m.spots[k]
		if time < p.lo || p.hi < time || p.block == forced {
			continue
		}
		d := max(p.off-at, at-p.end, 0)
		if n == most {
			if far[n-1] <= d {
				continue
			}
			n--
		}
		j := n
		n++
		for ; j > 0 && far[j-1] > d; j-- {
			near[j], far[j] = near[j-1], far[j-1]
		}
		near[j], far[j] = int32(k), d
	}
	slices.Sort(near[:n])
	for _, k := range slices.Backward(near[:n]) {
		m.out = append(m.out, m.spots[k].block)
		m.spots = slices.Delete(m.spots, int(k), int(k)+1)
	}
}

// recreate ends a change: blocks that are out go where they have room.
func (m *mender) recreate() {
	by := int(m.random() * 4)
	for _, i := range m.out {
		x := 0.0
		switch by {
		case 0:
			x = m.value[i]
		case 1:
			x = float64(m.items[i].End-m.items[i].Start) + 1
		case 2:
			x = float64(m.items[i].Size)
		case 3:
			x = m.random()
		}
		m.key[i] = x * (1 + mendNoise*m.random())
	}
	slices.SortFunc(m.out, func(a, b int32) int {
		switch {
		case m.key[a] > m.key[b]:
			return -1
		case m.key[a] < m.key[b]:
			return 1
		}
		return int(a - b)
	})
	rule := int(m.random() * gapRules)
	n := 0
	for _, i := range m.out {
		if o := m.room(i, rule); o >= 0 {
			m.insert(i, o)
		} else {
			m.out[n] = i
			n++
		}
	}
	m.out = m.out[:n]
}

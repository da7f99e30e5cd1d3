package pack

import "sort"

const (
	beamWidth  = 10   // partial layouts kept of each number of blocks
	beamKeep   = 3    // of which so many may continue the same one
	beamCost   = 5    // placements that looking at one partial layout counts as
	beamSoft   = 0.05 // of the target: the slack from which on more of it counts for little
	beamWidest = 1e-5 // weight of having placed long-lived blocks: between partial layouts that leave as much
)

// partial is a layout of some blocks, lowest first.
type partial struct {
	off   []int64 // by block: final once placed, else the lowest that it can be
	left  []int32 // blocks not placed, by off
	width float64 // sections that the placed blocks cover, as a share of all
	score float64 // the less the better
}

// follower is a partial layout with one block more.
type follower struct {
	of    int
	block int32
	score float64
}

// beam holds what broad needs at every step.
type beam struct {
	*searcher
	cap   int64
	cells float64 // sections that all blocks cover
	above []int64 // by section: bytes of blocks left at or above the offset looked at
	need  []int64 // by section: the least end of what is left there
	next  partial // the layout looked at
	moved []int32
}

// broad looks for a layout within cap. Blocks are placed in order of offset as the depth-first search does, but
// all partial layouts of as many blocks are compared, and the best few of them are continued. What is compared is
// the slack of the sections: cap less the largest, over the offsets o that blocks left in a section can have at
// least, of o and the bytes that have to lie at or above o. That counts what will be lost below long-lived
// blocks as soon as too little is left that could lie there.
func (s *searcher) broad(cap, steps int64, noise float64) (off []int64, used int64) {
	n := len(s.items)
	b := &beam{searcher: s, cap: cap, above: make([]int64, len(s.in)), need: make([]int64, len(s.in))}
	first := partial{off: make([]int64, n)}
	for i, it := range s.items {
		if it.Size > 0 {
			first.left = append(first.left, int32(i))
			b.cells += float64(s.hi[i]-s.lo[i]) + 1
		}
	}
	sort.SliceStable(first.left, func(x, y int) bool {
		i, j := first.left[x], first.left[y]
		if w, v := s.hi[i]-s.lo[i], s.hi[j]-s.lo[j]; w != v {
			return w > v
		}
		return s.items[i].Size > s.items[j].Size
	})
	b.next.off = make([]int64, n)
	now := []partial{first}
	var list []follower
	taken := make([]int, beamWidth)
	seen := map[uint64]bool{}
	for range first.left {
		if s.stop != nil && s.stop() {
			return nil, used
		}
		list = list[:0]
		clear(seen)
		for k := range now {
			p := &now[k]
			lowest := int64(1) << 62
			for _, i := range p.left {
				lowest = min(lowest, p.off[i]+s.items[i].Size)
			}
			for _, i := range p.left {
				if p.off[i] >= lowest {
					break // another block fits below it
				}
				if used += beamCost; used > steps {
					return nil, used
				}
				h := b.place(p, i)
				if seen[h] {
					continue
				}
				seen[h] = true
				if b.fits() {
					list = append(list, follower{k, i, b.next.score * (1 + noise*s.random())})
				}
			}
		}
		sort.SliceStable(list, func(x, y int) bool { return list[x].score < list[y].score })
		clear(taken)
		var then []partial
		for _, f := range list {
			if taken[f.of]++; taken[f.of] > beamKeep || len(then) == beamWidth {
				continue
			}
			b.place(&now[f.of], f.block)
			then = append(then, partial{append([]int64(nil), b.next.off...), append([]int32(nil), b.next.left...), b.next.width, f.score})
		}
		if len(then) == 0 {
			return nil, used
		}
		now = then
	}
	return now[0].off, used
}

// place makes b.next what p is with block c placed, and returns a number that is equal where the same is left with
// the same offsets to expect.
func (b *beam) place(p *partial, c int32) (hash uint64) {
	at := p.off[c]
	top := at + b.items[c].Size
	n := &b.next
	copy(n.off, p.off)
	n.width = p.width + (float64(b.hi[c]-b.lo[c])+1)/b.cells
	n.left, b.moved = n.left[:0], b.moved[:0]
	insert := func(list []int32, i int32) []int32 {
		k := len(list)
		list = append(list, i)
		for ; k > 0 && n.off[list[k-1]] > n.off[i]; k-- {
			list[k] = list[k-1]
		}
		list[k] = i
		return list
	}
	for _, i := range p.left {
		if i == c {
			continue
		}
		o := at // nothing is placed lower from here on
		over := b.hi[i] >= b.lo[c] && b.lo[i] <= b.hi[c]
		if over {
			o = top
		}
		if o = alignUp(o, b.items[i].Align); o > p.off[i] {
			n.off[i] = o
			if over {
				b.moved = insert(b.moved, i)
				continue
			}
		}
		n.left = insert(n.left, i)
	}
	// Both lists are in order.
	k, m := len(n.left)-1, len(b.moved)-1
	n.left = append(n.left, b.moved...)
	for w := len(n.left) - 1; m >= 0; w-- {
		if k >= 0 && n.off[n.left[k]] > n.off[b.moved[m]] {
			n.left[w] = n.left[k]
			k--
		} else {
			n.left[w] = b.moved[m]
			m--
		}
	}
	for _, i := range n.left {
		x := uint64(i+1) * 0x9e3779b97f4a7c15
		hash += (x ^ x>>29) * (uint64(n.off[i]) + 0x632be59bd9b4e019)
	}
	return hash
}

// fits reports whether what is left of b.next may fit under the cap, and rates it.
func (b *beam) fits() bool {
	n := &b.next
	clear(b.above)
	clear(b.need)
	for k := len(n.left) - 1; k >= 0; k-- {
		i := n.left[k]
		size, off := b.items[i].Size, n.off[i]
		above := b.above[b.lo[i] : b.hi[i]+1]
		need := b.need[b.lo[i] : b.hi[i]+1]
		need = need[:len(above)]
		for j, v := range above {
			v += size
			above[j] = v
			need[j] = max(need[j], v+off)
		}
	}
	sum, soft := 0.0, beamSoft*float64(b.cap)
	for _, v := range b.need {
		if v > b.cap {
			return false
		}
		x := soft / (float64(b.cap-v) + soft)
		sum += x * x
	}
	n.score = sum/float64(len(b.need)) - beamWidest*n.width
	return true
}

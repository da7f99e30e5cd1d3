package pack

import "sort"

// Options steer Search.
type Options struct {
	Steps int64       // placements to try; 0 is 2,000,000
	Room  int64       // an arena of this size is small enough; 0: the smallest
	Stop  func() bool // asked now and then; nil never stops
}

// Search returns the best layout that it finds. It first runs Pack's rules and
// then, if those leave a gap to the lower bound, a depth-first search in the
// manner of MiniMalloc (Moffitt, ASPLOS 2023): blocks are placed in order of
// offset, each as low as it can go; a branch ends where what is left in some
// section of time no longer fits under the target, or where a block would leave
// a hole that another block fills; what falls apart into parts that never
// overlap in time is solved part by part.
func Search(items []Item, opt Options) (Result, error) {
	res, err := Pack(items)
	if err != nil || res.Proven || res.Arena <= opt.Room {
		return res, err
	}
	steps := opt.Steps
	if steps == 0 {
		steps = 2_000_000
	}
	s := newSearcher(items)
	s.stop = opt.Stop
	// The lower bound first: reaching it ends the search. Then a quarter of what is left to gain at a time,
	// since a smaller target that can't be met takes all the steps it is given.
	low := res.LowerBound
	target := low
	for steps > 0 && res.Arena > max(low, opt.Room) && (opt.Stop == nil || !opt.Stop()) {
		share := steps/3 + 1
		if target == res.LowerBound {
			share = steps*3/4 + 1
		}
		off, used := s.solve(target, share)
		steps -= used
		if off != nil {
			var top int64
			for i, it := range items {
				top = max(top, off[i]+it.Size)
			}
			res.Offsets, res.Arena = off, top
		} else {
			low = target + 1
		}
		target = max(low, res.Arena-(res.Arena-low)/4-1)
	}
	res.Proven = res.Arena == res.LowerBound
	return res, nil
}

// searcher holds the state of the depth-first search. Time is cut into sections
// at the starts and ends of blocks; block i covers sections lo[i] to hi[i].
type searcher struct {
	items  []Item
	lo, hi []int32
	floor  []int64   // by section: end of the highest block placed
	rest   []int64   // by section: bytes of blocks not placed yet
	least  []int64   // by section: lowest offset that a block not placed yet can have; cap if there is none
	in     [][]int32 // by section: its blocks
	placed []bool
	stale  []int32 // by section: scratch of place, the number of the last placement that changed it
	count  int32   // of placements
	off    []int64 // by block: lowest offset it can have; final once placed
	rank   []int32 // by block: preference among candidates of equal offset
	cap    int64
	left   int64 // placements that may still be tried in this run
	seed   uint64
	blame  []float64 // by block: how often it was left where nothing fit any more
	stop   func() bool
	log    []placement
	undoO  []offChange
	undoF  []int64
	undoL  []leastChange

	// Sections of the last failure: from the first to the last of the blocks that had no room.
	failLo, failHi int32
	// jump takes back placements that have nothing to do with the last failure without trying others in their
	// place. That is not sound, since offsets never fall from one placement to the next: jumped says that it happened.
	jump, jumped bool
	deepest      int // most blocks placed at a time
}

// placement is an entry of the undo log: a block, and how long the other two
// logs were before it.
type placement struct {
	block                int32
	offs, floors, leasts int
}

type leastChange struct {
	section int32
	least   int64
}

type offChange struct {
	block int32
	off   int64
}

func newSearcher(items []Item) *searcher {
	n := len(items)
	s := &searcher{items: items, lo: make([]int32, n), hi: make([]int32, n), off: make([]int64, n),
		rank: make([]int32, n), blame: make([]float64, n), seed: 1}
	var times []int
	for _, it := range items {
		if it.Size > 0 {
			times = append(times, it.Start, it.End+1)
		}
	}
	sort.Ints(times)
	k := 0
	for i, t := range times {
		if i == 0 || t != times[k-1] {
			times[k] = t
			k++
		}
	}
	times = times[:k]
	for i, it := range items {
		s.lo[i] = int32(sort.SearchInts(times, it.Start))
		s.hi[i] = int32(sort.SearchInts(times, it.End+1)) - 1
	}
	s.floor = make([]int64, k)
	s.rest = make([]int64, k)
	s.least = make([]int64, k)
	s.in = make([][]int32, k)
	s.stale = make([]int32, k)
	s.placed = make([]bool, n)
	for i, it := range items {
		if it.Size == 0 {
			continue
		}
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			s.in[k] = append(s.in[k], int32(i))
		}
	}
	return s
}

// solve looks for a layout within cap and returns it with the number of placements tried. It climbs: short
// depth-first searches, each under preferences that differ a little from the best so far, which are those
// under which most blocks found a place. Blocks that had no room are preferred more. A solution that such
// a search finds at all it finds almost without backtracking, so many short searches beat few long ones.
func (s *searcher) solve(cap int64, steps int64) ([]int64, int64) {
	var all []int32
	for i, it := range s.items {
		if it.Size > 0 {
			all = append(all, int32(i))
		}
	}
	sort.SliceStable(all, func(a, b int) bool { return s.lo[all[a]] < s.lo[all[b]] })
	s.cap = cap
	used := int64(0)
	best := make([]float64, len(s.items)) // preferences, the larger the sooner
	now := make([]float64, len(s.items))
	most, calm, starts := 0, patience, 0
	for round := 0; used < steps; round++ {
		if s.stop != nil && s.stop() {
			break
		}
		limit := int64(2 * len(all))
		switch {
		case round < 2*preferences:
			s.start(round/2, all, now) // an easy problem needs no climbing
			limit *= 8
		case calm == patience:
			s.start(starts, all, now)
			most, calm = 0, 0
			starts++
		default:
			s.vary(all, best, now)
		}
		s.reset(all, now)
		s.jump = round%2 == 1
		limit = min(limit, steps-used)
		s.left = limit
		list := append([]int32(nil), all...)
		ok := s.parts(list, 0, -1)
		used += limit - max(s.left, 0)
		if ok {
			return append([]int64(nil), s.off...), used
		}
		if s.left >= 0 && !s.jumped {
			// The whole tree has been searched: there is no layout.
			return nil, steps
		}
		if round < 2*preferences {
			continue
		}
		calm++
		if s.deepest >= most {
			if s.deepest > most {
				calm = 0
			}
			most = s.deepest
			copy(best, now)
		}
	}
	return nil, used
}

const (
	preferences = 6  // to start from
	patience    = 80 // searches without progress before the next start
)

// reset takes every block out and orders candidates by score.
func (s *searcher) reset(all []int32, score []float64) {
	for k := range s.floor {
		s.floor[k], s.rest[k], s.least[k] = 0, 0, 0
	}
	for _, i := range all {
		s.off[i], s.placed[i] = 0, false
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			s.rest[k] += s.items[i].Size
		}
	}
	s.log, s.undoO, s.undoF, s.undoL = s.log[:0], s.undoO[:0], s.undoF[:0], s.undoL[:0]
	s.deepest, s.jumped = 0, false
	order := append([]int32(nil), all...)
	sort.SliceStable(order, func(a, b int) bool { return score[order[a]] > score[order[b]] })
	for r, i := range order {
		s.rank[i] = int32(r)
	}
}

// random is uniform in [0, 1).
func (s *searcher) random() float64 {
	s.seed = s.seed*6364136223846793005 + 1442695040888963407
	return float64(s.seed>>40) / (1 << 24)
}

// vary writes a variation of best to now.
func (s *searcher) vary(all []int32, best, now []float64) {
	var most float64
	for _, i := range all {
		most = max(most, s.blame[i])
	}
	const step, share = 0.15, 0.05
	for _, i := range all {
		now[i] = best[i]
		switch {
		case most > 0 && s.random() < s.blame[i]/most:
			now[i] += step * s.random()
		case s.random() < share:
			now[i] += step * (2*s.random() - 1)
		}
		s.blame[i] *= 0.5
	}
}

// start writes the preferences of the n-th start to score: blocks that are long, large, or in crowded
// sections first, and after each of these has had its turn, the same with noise.
func (s *searcher) start(n int, all []int32, score []float64) {
	load := make([]int64, len(s.floor)) // bytes in use by section
	for _, i := range all {
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			load[k] += s.items[i].Size
		}
	}
	peak := make([]int64, len(s.items))
	for _, i := range all {
		s.blame[i] = 0
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			peak[i] = max(peak[i], load[k])
		}
	}
	width := func(i int32) float64 { return float64(s.items[i].End-s.items[i].Start) + 1 }
	size := func(i int32) float64 { return float64(s.items[i].Size) }
	total := func(i int32) float64 { return float64(peak[i]) }
	key := [preferences]func(i int32) [3]float64{
		func(i int32) [3]float64 { return [3]float64{width(i), size(i) * width(i), total(i)} },
		func(i int32) [3]float64 { return [3]float64{total(i), size(i) * width(i), width(i)} },
		func(i int32) [3]float64 { return [3]float64{total(i), width(i), size(i) * width(i)} },
		func(i int32) [3]float64 { return [3]float64{size(i) * width(i), total(i), width(i)} },
		func(i int32) [3]float64 { return [3]float64{size(i), width(i), total(i)} },
		func(i int32) [3]float64 { return [3]float64{total(i) * width(i), size(i), 0} },
	}[n%preferences]
	keys := make([][3]float64, len(s.items))
	for _, i := range all {
		keys[i] = key(i)
	}
	order := append([]int32(nil), all...)
	sort.SliceStable(order, func(a, b int) bool {
		x, y := keys[order[a]], keys[order[b]]
		for k := range x {
			if x[k] != y[k] {
				return x[k] > y[k]
			}
		}
		return false
	})
	noise := 0.0
	if n >= preferences {
		noise = 0.3
	}
	for r, i := range order {
		score[i] = float64(len(order)-r)/float64(len(order)) + noise*(s.random()-0.5)
	}
}

// parts solves blocks (sorted by start, none placed) that may fall apart into
// groups that never overlap in time. last and latest are the offset and the
// rank of the block placed before, among those that they were with.
func (s *searcher) parts(blocks []int32, last int64, latest int32) bool {
	type span struct{ from, to int }
	var buf [8]span
	list := buf[:0]
	from := 0
	reach := int32(-1)
	for k, i := range blocks {
		if k > from && s.lo[i] > reach {
			list = append(list, span{from, k})
			from = k
		}
		reach = max(reach, s.hi[i])
	}
	if from < len(blocks) {
		list = append(list, span{from, len(blocks)})
	}
	if len(list) > 1 {
		// Small parts first: they fail fast.
		sort.SliceStable(list, func(a, b int) bool { return list[a].to-list[a].from < list[b].to-list[b].from })
	}
	mark := len(s.log)
	for _, p := range list {
		if !s.part(blocks[p.from:p.to], last, latest) {
			s.rewind(mark)
			return false
		}
	}
	return true
}

// part solves blocks that hang together.
func (s *searcher) part(blocks []int32, last int64, latest int32) bool {
	if len(blocks) == 0 {
		return true
	}
	s.deepest = max(s.deepest, len(s.log))
	// A block that starts at or above the end that another could have is
	// dominated: the other fits below it.
	lowest := int64(1) << 62
	for _, i := range blocks {
		lowest = min(lowest, max(s.off[i], last)+s.items[i].Size)
	}
	var buf [32]int32
	cand := buf[:0]
	for _, i := range blocks {
		if o := s.off[i]; o < lowest && o >= last && (o > last || s.rank[i] > latest) {
			cand = append(cand, i)
		}
	}
	sort.Slice(cand, func(a, b int) bool {
		x, y := cand[a], cand[b]
		if s.off[x] != s.off[y] {
			return s.off[x] < s.off[y]
		}
		return s.rank[x] < s.rank[y]
	})
	from, to := s.lo[blocks[0]], int32(0)
	for _, i := range blocks {
		to = max(to, s.hi[i])
	}
	rest := make([]int32, 0, len(blocks)-1)
	for _, c := range cand {
		if s.left--; s.left < 0 {
			return false
		}
		mark := len(s.log)
		if s.place(c, blocks, from, to) {
			rest = rest[:0]
			for _, i := range blocks {
				if i != c {
					rest = append(rest, i)
				}
			}
			if s.parts(rest, s.off[c], s.rank[c]) {
				return true
			}
		}
		s.rewind(mark)
		if s.left < 0 {
			return false
		}
		if s.jump && (s.hi[c] < s.failLo || s.lo[c] > s.failHi) {
			s.jumped = true
			return false // something else in its place would fail alike
		}
	}
	return false
}

// place puts block c at its lowest offset, and reports whether what is left of
// its part can still fit.
func (s *searcher) place(c int32, blocks []int32, from, to int32) bool {
	s.log = append(s.log, placement{c, len(s.undoO), len(s.undoF), len(s.undoL)})
	s.placed[c] = true
	at := s.off[c]
	top := at + s.items[c].Size
	for k := s.lo[c]; k <= s.hi[c]; k++ {
		s.undoF = append(s.undoF, s.floor[k])
		s.floor[k] = top
		s.rest[k] -= s.items[c].Size
	}
	if top > s.cap {
		s.failLo, s.failHi = s.lo[c], s.hi[c]
		return false
	}
	for k := from; k <= to; k++ {
		if r := s.rest[k]; r > 0 && max(s.floor[k], at)+r > s.cap {
			s.blameOn(k, c, blocks)
			if s.floor[k] < at {
				s.failLo, s.failHi = 0, 1<<30
			}
			return false
		}
	}
	s.count++
	for _, i := range blocks {
		if i == c || s.hi[i] < s.lo[c] || s.lo[i] > s.hi[c] {
			continue
		}
		if o := alignUp(top, s.items[i].Align); o > s.off[i] {
			s.undoO = append(s.undoO, offChange{i, s.off[i]})
			s.off[i] = o
			for k := s.lo[i]; k <= s.hi[i]; k++ {
				s.stale[k] = s.count
			}
			if o+s.items[i].Size > s.cap {
				s.blame[i]++
				s.failLo, s.failHi = s.lo[i], s.hi[i]
				return false
			}
		}
	}
	for k := s.lo[c]; k <= s.hi[c]; k++ {
		s.stale[k] = s.count
	}
	// In each section what is left lies at or above the lowest offset that any
	// block left there can have.
	for k := from; k <= to; k++ {
		r := s.rest[k]
		if s.stale[k] == s.count {
			least := s.cap
			for _, i := range s.in[k] {
				if !s.placed[i] {
					least = min(least, s.off[i])
				}
			}
			if least != s.least[k] {
				s.undoL = append(s.undoL, leastChange{k, s.least[k]})
				s.least[k] = least
			}
		}
		if r > 0 && max(s.least[k], at)+r > s.cap {
			s.blameOn(k, c, blocks)
			if s.least[k] <= at {
				s.failLo, s.failHi = 0, 1<<30
			}
			return false
		}
	}
	return true
}

// blameOn counts a failure in section k against the blocks left there.
func (s *searcher) blameOn(k, c int32, blocks []int32) {
	s.failLo, s.failHi = k, k
	for _, i := range blocks {
		if i != c && s.lo[i] <= k && k <= s.hi[i] {
			s.failLo, s.failHi = min(s.failLo, s.lo[i]), max(s.failHi, s.hi[i])
		}
	}
	for _, i := range blocks {
		if i != c && s.lo[i] <= k && k <= s.hi[i] {
			s.blame[i]++
		}
	}
}

// rewind takes placements back until the log has length n.
func (s *searcher) rewind(n int) {
	for len(s.log) > n {
		p := s.log[len(s.log)-1]
		s.log = s.log[:len(s.log)-1]
		for k := len(s.undoO) - 1; k >= p.offs; k-- {
			s.off[s.undoO[k].block] = s.undoO[k].off
		}
		s.undoO = s.undoO[:p.offs]
		for k := len(s.undoL) - 1; k >= p.leasts; k-- {
			s.least[s.undoL[k].section] = s.undoL[k].least
		}
		s.undoL = s.undoL[:p.leasts]
		c := p.block
		s.placed[c] = false
		for k := s.lo[c]; k <= s.hi[c]; k++ {
			s.floor[k] = s.undoF[p.floors+int(k-s.lo[c])]
			s.rest[k] += s.items[c].Size
		}
		s.undoF = s.undoF[:p.floors]
	}
}

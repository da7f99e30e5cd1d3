package exe

import (
	"fmt"
	"slices"
)

// access is a range of bytes that an instruction may touch.
type access struct {
	lo, hi int64
	write  bool
	single bool // by a launch of one tile, which is always the same worker's
	inst   int
}

// class tells accesses apart by what they conflict with.
func (a access) class() int {
	c := 0
	if a.write {
		c |= writes
	}
	if a.single {
		c |= single
	}
	return c
}

// The bits of a class.
const (
	writes = 1 << iota
	single
	classes = 1 << iota
)

// hazards walks a program as the driver does and knows what may still be in flight: for every stretch of the
// arena and every class, which instruction was the last to touch it. It is a tree over the ends of all accesses, so that an access takes
// logarithmic time however many are in flight. Constants are never written and do not matter.
type hazards struct {
	ends []int64 // sorted, no two alike: leaf i is bytes ends[i] to ends[i+1]
	// By node and class, from 1 up, 0 for none: the last that touched all of the node's bytes, and any of them.
	whole, any [][classes]int32
	since      int32 // what came before was waited for
}

func newHazards(prog []Inst) *hazards {
	h := &hazards{}
	for i := range prog {
		for _, a := range accesses(i, &prog[i]) {
			h.ends = append(h.ends, a.lo, a.hi)
		}
	}
	slices.Sort(h.ends)
	h.ends = slices.Compact(h.ends)
	h.whole, h.any = make([][classes]int32, 2*len(h.ends)), make([][classes]int32, 2*len(h.ends))
	return h
}

// waits forgets what instructions before i touched.
func (h *hazards) waits(i int) { h.since = int32(i) }

// leaves are the nodes that a covers, from first to before end.
func (h *hazards) leaves(a access) (first, end int) {
	first, _ = slices.BinarySearch(h.ends, a.lo)
	end, _ = slices.BinarySearch(h.ends, a.hi)
	return first + len(h.ends), end + len(h.ends)
}

// touch puts an access, by the latest instruction so far, in flight.
func (h *hazards) touch(a access) {
	c, at := a.class(), int32(a.inst+1)
	first, end := h.leaves(a)
	above := func(n int) {
		for n /= 2; n > 0; n /= 2 {
			h.any[n][c] = at
		}
	}
	above(first)
	above(end - 1)
	for ; first < end; first, end = first/2, end/2 {
		if first%2 == 1 {
			h.whole[first][c], h.any[first][c] = at, at
			first++
		}
		if end%2 == 1 {
			end--
			h.whole[end][c], h.any[end][c] = at, at
		}
	}
}

// conflict returns the index of the last unfinished instruction that a must wait for,
// or −1: one of the two writes where the other reads or writes, and they are not
// both of one tile, hence in order on one worker.
func (h *hazards) conflict(a access) int {
	last := h.since
	see := func(by *[classes]int32) {
		for c, at := range by {
			if (a.write || c&writes != 0) && !(a.single && c&single != 0) {
				last = max(last, at)
			}
		}
	}
	first, end := h.leaves(a)
	above := func(n int) {
		for n /= 2; n > 0; n /= 2 {
			see(&h.whole[n])
		}
	}
	above(first)
	above(end - 1)
	for ; first < end; first, end = first/2, end/2 {
		if first%2 == 1 {
			see(&h.any[first])
			first++
		}
		if end%2 == 1 {
			end--
			see(&h.any[end])
		}
	}
	if last > h.since {
		return int(last) - 1
	}
	return -1
}

func accesses(at int, in *Inst) []access {
	var as []access
	add := func(a Arg, single bool) {
		if !a.Const && a.Bytes > 0 {
			as = append(as, access{a.Offset, a.Offset + a.Bytes, a.Write, single, at})
		}
	}
	switch in.Kind {
	case Launch:
		if in.Tiles == 0 {
			return nil
		}
		for _, a := range in.Args {
			add(a, in.Tiles == 1)
		}
	case Print: // a launch of one tile
		for _, a := range in.Args {
			add(a, true)
		}
	case BranchIfFalse, Case, Check: // every worker reads the predicate
		p := in.Pred
		p.Write = false
		add(p, false)
	}
	return as
}

// joins marks the instructions that control may reach other than by falling
// through. What is in flight there depends on the way, so they wait.
func joins(prog []Inst) []bool {
	marks := make([]bool, len(prog)+1)
	for _, in := range prog {
		for _, t := range in.Targets {
			if t >= 0 && t <= len(prog) {
				marks[t] = true
			}
		}
	}
	return marks
}

// PlaceWaits sets Wait on each instruction that must wait for earlier ones,
// as late as possible, from the extents and directions of the arguments, and
// clears it elsewhere. The driver itself waits before and after a program.
func PlaceWaits(prog []Inst) {
	h := newHazards(prog)
	marks := joins(prog)
	for i := range prog {
		in := &prog[i]
		as := accesses(i, in)
		in.Wait = marks[i]
		for _, a := range as {
			in.Wait = in.Wait || h.conflict(a) >= 0
		}
		if in.Wait {
			h.waits(i)
		}
		for _, a := range as {
			h.touch(a)
		}
	}
}

// checkWaits reports the first instruction that lacks a wait it needs.
func checkWaits(prog []Inst) error {
	h := newHazards(prog)
	marks := joins(prog)
	for i := range prog {
		in := &prog[i]
		if in.Wait {
			h.waits(i)
		} else if marks[i] {
			return fmt.Errorf("instruction %d is a jump's target and does not wait", i)
		}
		as := accesses(i, in)
		for _, a := range as {
			if b := h.conflict(a); b >= 0 {
				return fmt.Errorf("instruction %d (%s) touches bytes %d to %d of the arena without waiting for instruction %d (%s)", i, in.Symbol, a.lo, a.hi, b, prog[b].Symbol)
			}
		}
		for _, a := range as {
			h.touch(a)
		}
	}
	return nil
}

// Package pack places blocks of memory with known lifetimes in one arena: each
// block gets an offset such that blocks that live at the same time do not
// overlap, and the end of the highest block is as low as can be.
package pack

import (
	"fmt"
	"math"
	"sort"
)

// Item is a block. It is in use at the integer times Start to End, both
// included.
type Item struct {
	Start, End int
	Size       int64 // bytes, ≥ 0
	Align      int64 // its offset is a multiple of this; 0 is 1
}

// Result is a layout. No layout is smaller than LowerBound: the largest sum of
// sizes in use at one time, or more where a search has been exhausted.
type Result struct {
	Offsets    []int64 // by item
	Arena      int64   // end of the highest block
	LowerBound int64
	Proven     bool // Arena is the least possible
}

// LowerBound returns the largest sum of sizes in use at one time.
func LowerBound(items []Item) int64 {
	type event struct {
		time  int
		bytes int64
	}
	ev := make([]event, 0, 2*len(items))
	for _, it := range items {
		if it.Size > 0 {
			ev = append(ev, event{it.Start, it.Size}, event{it.End + 1, -it.Size})
		}
	}
	sort.Slice(ev, func(a, b int) bool {
		if ev[a].time != ev[b].time {
			return ev[a].time < ev[b].time
		}
		return ev[a].bytes < ev[b].bytes
	})
	var live, most int64
	for _, e := range ev {
		live += e.bytes
		most = max(most, live)
	}
	return most
}

// Validate reports the first item that makes no sense.
func Validate(items []Item) error {
	var total int64
	for i, it := range items {
		switch {
		case it.End < it.Start:
			return fmt.Errorf("pack: item %d ends at %d, before its start at %d", i, it.End, it.Start)
		case it.Size < 0:
			return fmt.Errorf("pack: item %d has negative size %d", i, it.Size)
		case it.Align < 0:
			return fmt.Errorf("pack: item %d has negative alignment %d", i, it.Align)
		case it.Size > math.MaxInt64/4-total || max(it.Align, 1) > math.MaxInt64/4-total-it.Size:
			return fmt.Errorf("pack: the sizes up to item %d add up to more than 61 bits", i)
		}
		total += it.Size + max(it.Align, 1)
	}
	return nil
}

// Verify reports the first item of a layout that is misplaced.
func Verify(items []Item, offsets []int64, arena int64) error {
	if len(offsets) != len(items) {
		return fmt.Errorf("pack: %d offsets for %d items", len(offsets), len(items))
	}
	for i, it := range items {
		o := offsets[i]
		switch {
		case o < 0 || o > arena-it.Size:
			return fmt.Errorf("pack: item %d of %d bytes at offset %d leaves the arena of %d bytes", i, it.Size, o, arena)
		case it.Align > 1 && o%it.Align != 0:
			return fmt.Errorf("pack: item %d at offset %d is not aligned to %d", i, o, it.Align)
		}
	}
	byStart := make([]int, len(items))
	for i := range byStart {
		byStart[i] = i
	}
	sort.SliceStable(byStart, func(a, b int) bool { return items[byStart[a]].Start < items[byStart[b]].Start })
	var active []int
	for _, i := range byStart {
		keep := active[:0]
		for _, j := range active {
			if items[j].End < items[i].Start {
				continue
			}
			keep = append(keep, j)
			if items[i].Size > 0 && items[j].Size > 0 &&
				offsets[i] < offsets[j]+items[j].Size && offsets[j] < offsets[i]+items[i].Size {
				return fmt.Errorf("pack: items %d and %d overlap", j, i)
			}
		}
		active = append(keep, i)
	}
	return nil
}

// Pack returns the best layout that the constructive rules find: blocks are
// placed one at a time, in several orders, each at the lowest offset that is
// free throughout its life.
func Pack(items []Item) (Result, error) {
	if err := Validate(items); err != nil {
		return Result{}, err
	}
	res := Result{LowerBound: LowerBound(items), Arena: math.MaxInt64}
	for _, order := range orders(items) {
		off, arena := firstFit(items, order, res.Arena)
		if off != nil && arena < res.Arena {
			res.Offsets, res.Arena = off, arena
		}
		if res.Arena == res.LowerBound {
			break
		}
	}
	res.Proven = res.Arena == res.LowerBound
	return res, nil
}

// orders lists the orders in which the constructive rules place blocks.
func orders(items []Item) [][]int {
	span := func(i int) float64 { return float64(items[i].End-items[i].Start) + 1 }
	keys := []func(i int) float64{
		func(i int) float64 { return -float64(items[i].Size) },
		func(i int) float64 { return -float64(items[i].Size) * span(i) },
		func(i int) float64 { return -span(i) },
		func(i int) float64 { return float64(items[i].Start) },
		func(i int) float64 { return -float64(items[i].Size) * math.Sqrt(span(i)) },
		func(i int) float64 { return float64(-items[i].End) },
	}
	var out [][]int
	for _, key := range keys {
		o := make([]int, len(items))
		k := make([]float64, len(items))
		for i := range o {
			o[i] = i
			k[i] = key(i)
		}
		sort.SliceStable(o, func(a, b int) bool {
			if k[o[a]] != k[o[b]] {
				return k[o[a]] < k[o[b]]
			}
			return items[o[a]].Size > items[o[b]].Size
		})
		out = append(out, o)
	}
	return out
}

func alignUp(x, a int64) int64 {
	if a > 1 {
		if r := x % a; r != 0 {
			x += a - r
		}
	}
	return x
}

func alignDown(x, a int64) int64 {
	if a > 1 {
		x -= x % a
	}
	return x
}

// firstFit places items in the given order and gives up at an arena of limit or
// more.
func firstFit(items []Item, order []int, limit int64) ([]int64, int64) {
	off := make([]int64, len(items))
	placed := make([]int, 0, len(items)) // by offset
	var arena int64
	for _, i := range order {
		it := items[i]
		if it.Size == 0 {
			continue
		}
		at := int64(0)
		for _, j := range placed {
			p := items[j]
			if p.End < it.Start || it.End < p.Start {
				continue
			}
			if off[j] >= at+it.Size {
				break
			}
			at = max(at, alignUp(off[j]+p.Size, it.Align))
		}
		off[i] = at
		arena = max(arena, at+it.Size)
		if arena >= limit {
			return nil, arena
		}
		k := sort.Search(len(placed), func(k int) bool { return off[placed[k]] > at })
		placed = append(placed, 0)
		copy(placed[k+1:], placed[k:])
		placed[k] = i
	}
	return off, arena
}

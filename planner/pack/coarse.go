package pack

import (
	"cmp"
	"slices"
)

// coarse is a smaller problem whose blocks are several of the given one's, glued together without a gap. A layout of
// it is one of the given problem; the reverse does not hold, so that it proves nothing.
type coarse struct {
	items []Item
	parts [][]part // by block of items
}

// part is a given block within a glued one.
type part struct {
	item int
	at   int64 // its offset there
}

// coarsen glues blocks that together fill a rectangle of time and memory: those with the same lifetime lie on
// each other, and one that starts where another of equal size ends takes its place. It repeats that until nothing
// changes, as lying together may make lifetimes or sizes equal. Blocks smaller than least take nobody's place, and if
// plain is set none does where there is a choice: small sizes are often equal by chance.
func coarsen(items []Item, least int64, plain bool) coarse {
	var c coarse
	for i, it := range items {
		if it.Size > 0 {
			it.Align = max(it.Align, 1)
			c.items = append(c.items, it)
			c.parts = append(c.parts, []part{{item: i}})
		}
	}
	for n := -1; n != len(c.items); {
		n = len(c.items)
		c.follow(least, plain)
		c.stack()
	}
	return c
}

// glue makes block j part of block i, at an offset within it, and leaves j without parts.
func (c *coarse) glue(i, j int, at int64) {
	for _, p := range c.parts[j] {
		c.parts[i] = append(c.parts[i], part{p.item, p.at + at})
	}
	c.parts[j] = nil
}

// drop removes blocks without parts.
func (c *coarse) drop() {
	n := 0
	for i := range c.items {
		if c.parts[i] != nil {
			c.items[n], c.parts[n] = c.items[i], c.parts[i]
			n++
		}
	}
	c.items, c.parts = c.items[:n], c.parts[:n]
}

// follow glues blocks of equal size and alignment that follow each other in time.
func (c *coarse) follow(least int64, plain bool) {
	type key struct {
		time        int
		size, align int64
	}
	ends, starts := map[key]int{}, map[key][]int{}
	order := make([]int, len(c.items))
	for i, it := range c.items {
		order[i] = i
		ends[key{it.End + 1, it.Size, it.Align}]++
		k := key{it.Start, it.Size, it.Align}
		starts[k] = append(starts[k], i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.items[b].Start, c.items[a].Start) })
	for _, i := range order { // the latest first, so that a block glued here is whole
		it := &c.items[i]
		k := key{it.End + 1, it.Size, it.Align}
		list := starts[k]
		if len(list) == 0 || it.Size < least || plain && (len(list) > 1 || ends[k] > 1) {
			continue
		}
		j := list[0]
		if plain {
			delete(starts, k)
		} else {
			starts[k] = list[1:]
		}
		it.End = c.items[j].End
		c.glue(i, j, 0)
	}
	c.drop()
}

// stack glues blocks of equal lifetime and alignment.
func (c *coarse) stack() {
	type key struct {
		start, end int
		align      int64
	}
	first := map[key]int{}
	for j, it := range c.items {
		k := key{it.Start, it.End, it.Align}
		i, ok := first[k]
		if !ok {
			if it.Size%it.Align == 0 { // else what lies on it would not be aligned
				first[k] = j
			}
			continue
		}
		if it.Size%it.Align != 0 {
			continue
		}
		c.glue(i, j, c.items[i].Size)
		c.items[i].Size += it.Size
	}
	c.drop()
}

// expand is the layout of n given blocks that one of the glued blocks stands for.
func (c *coarse) expand(n int, off []int64) []int64 {
	out := make([]int64, n)
	for i, list := range c.parts {
		for _, p := range list {
			out[p.item] = off[i] + p.at
		}
	}
	return out
}

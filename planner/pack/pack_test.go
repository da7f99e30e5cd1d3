package pack

import (
	"encoding/csv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func loadCSV(t testing.TB, name string) []Item {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	path := ""
	for path == "" {
		try := filepath.Join(dir, "..", "shared", "planner-data", "minimalloc", "benchmarks", filepath.FromSlash(name)+".csv")
		if _, err := os.Stat(try); err == nil {
			path = try
		}
		up := filepath.Dir(dir)
		if up == dir && path == "" {
			t.Skip("no shared/planner-data next to the repository")
		}
		dir = up
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var items []Item
	for _, r := range rows[1:] {
		lower, err1 := strconv.Atoi(strings.TrimSpace(r[1]))
		upper, err2 := strconv.Atoi(strings.TrimSpace(r[2]))
		size, err3 := strconv.ParseInt(strings.TrimSpace(r[3]), 10, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatalf("%s: bad row %v", name, r)
		}
		items = append(items, Item{Start: lower, End: upper - 1, Size: size})
	}
	return items
}

func TestMiniMalloc(t *testing.T) {
	if res, err := Search(loadCSV(t, "examples/input.12"), Options{}); err != nil || res.Arena != 12 || !res.Proven {
		t.Errorf("the example takes %d bytes (%v) of 12", res.Arena, err)
	}
	for _, name := range strings.Split("A B C D E F G H I J K", " ") {
		items := loadCSV(t, "challenging/"+name+".1048576")
		start := time.Now()
		res, err := Search(items, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(items, res.Offsets, res.Arena); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		first, _ := Pack(items)
		t.Logf("%s: %d blocks, constructive %d, search %d, lower bound %d, %v", name, len(items), first.Arena, res.Arena, res.LowerBound, time.Since(start))
		if !res.Proven {
			t.Errorf("%s: arena %d, lower bound %d", name, res.Arena, res.LowerBound)
		}
	}
}

// TestCoarse: a layout of a coarser problem is one of the given problem in as many bytes, and gluing costs nothing: as
// much is in use at every time.
func TestCoarse(t *testing.T) {
	glued, fewest := 0, 0
	for seed := uint64(0); seed < 400; seed++ {
		rng := rand.New(rand.NewPCG(seed, 4))
		var items []Item
		for k := 10 + rng.IntN(30); k > 0; k-- {
			s := rng.IntN(12)
			it := Item{Start: s, End: s + rng.IntN(5), Size: rng.Int64N(6)}
			if seed%2 == 1 {
				it.Align = 1 << rng.IntN(3)
			}
			items = append(items, it)
		}
		for _, c := range []coarse{coarsen(items, 0, false), coarsen(items, 0, true), coarsen(items, 3, false)} {
			if a, b := LowerBound(c.items), LowerBound(items); a != b {
				t.Fatalf("seed %d: %d bytes in use at one time, %d before", seed, a, b)
			}
			res, err := Pack(c.items)
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(items, c.expand(len(items), res.Offsets), res.Arena); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if len(c.items) < len(items) {
				glued++
			}
		}
		if len(coarsen(items, 0, false).items) <= len(coarsen(items, 0, true).items) {
			fewest++
		}
	}
	if glued < 1000 || fewest < 350 {
		t.Errorf("%d of 1200 problems got smaller, %d of 400 are smaller where blocks have a choice", glued, fewest)
	}
}

// TestSlots: time is cut into slots whose blocks change in place. Gluing finds them; the search of single blocks
// does not in as many steps.
func TestSlots(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	var items []Item
	for s := range 12 {
		size := int64(1000 + 37*s)
		for at := s; at < 8000; {
			n := 1 + rng.IntN(1000)
			cut := 1 + rng.Int64N(size-1) // two blocks that change places with one
			items = append(items, Item{Start: at, End: at + n - 1, Size: cut}, Item{Start: at, End: at + n - 1, Size: size - cut})
			at += n
			items = append(items, Item{Start: at, End: at + 49, Size: size})
			at += 50
		}
	}
	const steps = 10_000
	res, err := Search(items, Options{Steps: steps})
	if err != nil || !res.Proven {
		t.Errorf("%d blocks: arena %d, lower bound %d, %v", len(items), res.Arena, res.LowerBound, err)
	}
	if off, _, _ := newSearcher(items).climb(LowerBound(items), steps); off != nil {
		t.Error("the given blocks are laid out as quickly, which tests nothing")
	}
}

// bruteForce is the smallest arena: some order of the blocks, each as low as it can go above those before it that
// are in use with it, gives a layout that can't be lowered, and all such layouts come of one.
func bruteForce(items []Item) int64 {
	best := int64(1) << 62
	off := make([]int64, len(items))
	var place func(done []int, left uint, arena int64)
	place = func(done []int, left uint, arena int64) {
		if arena >= best {
			return
		}
		if left == 0 {
			best = arena
			return
		}
		for i, it := range items {
			if left&(1<<i) == 0 {
				continue
			}
			at := int64(0)
			for _, j := range done {
				if it.Size > 0 && items[j].Size > 0 && items[j].Start <= it.End && it.Start <= items[j].End {
					at = max(at, off[j]+items[j].Size)
				}
			}
			off[i] = alignUp(at, it.Align)
			place(append(done, i), left&^(1<<i), max(arena, off[i]+it.Size))
		}
	}
	place(make([]int, 0, len(items)), 1<<len(items)-1, 0)
	return best
}

// TestOptimum compares with all layouts of small problems: the search must find the best one and know that it is.
func TestOptimum(t *testing.T) {
	above := 0
	for seed := uint64(0); seed < 300; seed++ {
		rng := rand.New(rand.NewPCG(seed, 2))
		var items []Item
		for k := 1 + rng.IntN(7); k > 0; k-- {
			s := rng.IntN(6)
			it := Item{Start: s, End: s + rng.IntN(4), Size: 1 + rng.Int64N(9)}
			if seed%2 == 1 {
				it.Size *= 4
				it.Align = 4 << rng.IntN(3)
			}
			items = append(items, it)
		}
		res, err := Search(items, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(items, res.Offsets, res.Arena); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if best := bruteForce(items); res.Arena != best || !res.Proven || res.LowerBound != best {
			t.Errorf("seed %d: arena %d, lower bound %d, proven %v, the optimum is %d: %v", seed, res.Arena, res.LowerBound, res.Proven, best, items)
		}
		if res.Arena > LowerBound(items) {
			above++
		}
	}
	if above < 10 {
		t.Errorf("only %d optima above the bytes in use at one time: the proof is hardly tested", above)
	}
}

// TestBroad: what the breadth-first search places is a layout, with alignments too, and twice the same.
func TestBroad(t *testing.T) {
	found := 0
	for seed := uint64(0); seed < 40; seed++ {
		rng := rand.New(rand.NewPCG(seed, 3))
		var items []Item
		for k := 10 + rng.IntN(30); k > 0; k-- {
			s := rng.IntN(20)
			items = append(items, Item{Start: s, End: s + rng.IntN(8), Size: rng.Int64N(20), Align: 1 << rng.IntN(3)})
		}
		cap := LowerBound(items) * 5 / 4
		off, used := newSearcher(items).broad(cap, 1_000_000, 0)
		again, _ := newSearcher(items).broad(cap, 1_000_000, 0)
		if !slices.Equal(off, again) {
			t.Fatalf("seed %d: two searches differ", seed)
		}
		if off == nil {
			continue
		}
		found++
		if err := Verify(items, off, cap); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if few, _ := newSearcher(items).broad(cap, used-1, 0); few != nil {
			t.Fatalf("seed %d: a layout in fewer steps than it takes", seed)
		}
	}
	if found < 20 {
		t.Errorf("%d of 40 laid out", found)
	}
}

// TestMend: what mending places is a layout, with alignments too, and twice the same; a search that stopped goes on.
func TestMend(t *testing.T) {
	found, later := 0, 0
	for seed := uint64(0); seed < 40; seed++ {
		rng := rand.New(rand.NewPCG(seed, 5))
		var items []Item
		for k := 10 + rng.IntN(30); k > 0; k-- {
			s := rng.IntN(20)
			items = append(items, Item{Start: s, End: s + rng.IntN(8), Size: rng.Int64N(20), Align: 1 << rng.IntN(3)})
		}
		cap := LowerBound(items) * 21 / 20
		off, used := newSearcher(items).mend(cap, 5000)
		again, _ := newSearcher(items).mend(cap, 5000)
		if !slices.Equal(off, again) {
			t.Fatalf("seed %d: two searches differ", seed)
		}
		if off == nil {
			continue
		}
		found++
		if err := Verify(items, off, cap); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if used == 0 {
			continue
		}
		s := newSearcher(items)
		if few, _ := s.mend(cap, used/2); few == nil {
			if rest, _ := s.mend(cap, 5000); !slices.Equal(rest, off) {
				t.Fatalf("seed %d: going on ends elsewhere", seed)
			}
			later++
		}
	}
	if found < 20 || later < 5 {
		t.Errorf("%d of 40 laid out, %d of them in two calls", found, later)
	}
}

// TestRoom: a layout that fits ends the search, though a smaller one exists.
func TestRoom(t *testing.T) {
	items := []Item{{Start: 0, End: 1, Size: 3}, {Start: 1, End: 2, Size: 4}, {Start: 2, End: 3, Size: 3}, {Start: 3, End: 4, Size: 4}, {Start: 0, End: 0, Size: 4}, {Start: 4, End: 4, Size: 3}}
	first, err := Pack(items)
	if err != nil {
		t.Fatal(err)
	}
	res, err := Search(items, Options{Room: first.Arena})
	if err != nil || res.Arena != first.Arena {
		t.Fatalf("arena %d, %v; the first layout has %d", res.Arena, err, first.Arena)
	}
	if res, err = Search(items, Options{}); err != nil || !res.Proven {
		t.Fatalf("arena %d, lower bound %d, %v", res.Arena, res.LowerBound, err)
	}
}

func TestRandom(t *testing.T) {
	for seed := uint64(0); seed < 300; seed++ {
		rng := rand.New(rand.NewPCG(seed, 1))
		var items []Item
		for k := rng.IntN(40); k > 0; k-- {
			s := rng.IntN(30)
			items = append(items, Item{Start: s, End: s + rng.IntN(8), Size: rng.Int64N(20), Align: 1 << rng.IntN(4)})
		}
		for _, f := range []func() (Result, error){
			func() (Result, error) { return Pack(items) },
			func() (Result, error) { return Search(items, Options{Steps: 2000}) },
		} {
			res, err := f()
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(items, res.Offsets, res.Arena); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if res.Arena < res.LowerBound {
				t.Fatalf("seed %d: arena %d below the lower bound %d", seed, res.Arena, res.LowerBound)
			}
		}
	}
}

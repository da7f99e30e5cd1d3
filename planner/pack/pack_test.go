package pack

import (
	"encoding/csv"
	"math/rand/v2"
	"os"
	"path/filepath"
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
		try := filepath.Join(dir, "..", "shared", "planner-data", "minimalloc", "benchmarks", "challenging", name+".1048576.csv")
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
	// D and J stay above the lower bound, which may be out of reach for them; I takes seconds.
	names := "A B C E F G H K"
	if os.Getenv("REPRISE_LONG") != "" {
		names += " I"
	}
	for _, name := range strings.Split(names, " ") {
		items := loadCSV(t, name)
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

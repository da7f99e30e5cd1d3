package exactness

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/internal/diag"
)

// TestRowsAreNamedOnce: names are unique, and the peers' scripts have a row of every name.
func TestRowsAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, script := range []string{"torch_rows.py", "jax_rows.py"} {
		text, err := os.ReadFile(filepath.Join("..", "peers", "exactness", script))
		require.NoError(t, err)
		for _, name := range Names() {
			assert.Contains(t, string(text), `"`+name+`": `, script)
		}
	}
	for _, name := range Names() {
		assert.False(t, seen[name], name)
		seen[name] = true
	}
}

func TestMistakes(t *testing.T) {
	_, err := Run(context.Background(), Options{Only: []string{"none"}})
	e := diag.As(err)
	assert.Equal(t, "usage", e.Code)
	assert.Contains(t, e.Hint, "checkpoint")
	_, err = Run(context.Background(), Options{Peers: true, PeersDir: t.TempDir()})
	e = diag.As(err)
	assert.Equal(t, "peers", e.Code)
	assert.Contains(t, e.Hint, "bench/peers/setup.sh")
}

// TestPeer: a peer's answer is its cell; one that fails, or says something else, is a cell that says why.
func TestPeer(t *testing.T) {
	dir := t.TempDir()
	script := func(text string) *Cell {
		path := filepath.Join(dir, "rows.sh")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
		c, err := peer(context.Background(), "/bin/sh", path, "rng")
		require.NoError(t, err)
		return c
	}
	c := script(`echo '{"row":"'$1'","version":"Peer 1","says":"3 of 4 differ","measured":{"differ":3}}'`)
	assert.Equal(t, "Peer 1", c.Version)
	assert.Equal(t, "3 of 4 differ", c.Says)
	assert.JSONEq(t, `{"differ":3}`, string(c.Measured))
	c = script("echo nothing; echo 'no module torch' >&2; exit 1")
	assert.True(t, c.Failed)
	assert.Contains(t, c.Says, "no module torch")
}

// TestMarkdown: every row and every contestant is in the table; Exact looks at ours only.
func TestMarkdown(t *testing.T) {
	r := &Report{Threads: 2, Rows: []*Row{
		{Name: "a", What: "first", Ours: Cell{Says: "equal (4)"}, Torch: &Cell{Version: "PyTorch 9", Says: "1 of 4 differ | silent"}, JAX: &Cell{Version: "JAX 8", Says: "equal (4)"}},
		{Name: "b", What: "second", Ours: Cell{Says: "equal (2)"}},
	}}
	assert.Contains(t, r.Markdown(), "| what | PyTorch 9 | JAX 8 | reprise |\n|---|---|---|---|\n| first | 1 of 4 differ \\| silent | equal (4) | equal (4) |\n| second | – | – | equal (2) |\n")
	assert.True(t, r.Exact())
	r.Rows[1].Ours.Says = "1 of 2 differ"
	assert.False(t, r.Exact())
}

// TestDiffer names what differs.
func TestDiffer(t *testing.T) {
	d := differ(map[string]string{"a": "1", "b": "2"}, map[string]string{"a": "1", "b": "3"})
	assert.Equal(t, difference{Differ: 1, Of: 2, Names: []string{"b"}}, d)
	assert.Equal(t, "1 of 2 differ", d.String())
	assert.Equal(t, "equal (2)", difference{Of: 2}.String())
}

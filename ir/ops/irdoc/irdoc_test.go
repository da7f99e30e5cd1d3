package irdoc

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/ops"
)

var update = flag.Bool("update", false, "write docs/ir.md")

// root is the directory of go.mod.
func root(t *testing.T) string {
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		require.NotEqual(t, up, dir, "no go.mod above the test")
		dir = up
	}
}

func TestDocIsUpToDate(t *testing.T) {
	text, err := Markdown(ops.Table())
	require.NoError(t, err)
	path := filepath.Join(root(t), "docs", "ir.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, string(have) == text, "docs/ir.md is not what the op table says: run go test ./ir/ops/irdoc -update")
}

// The example of the introduction is IR that parses and prints back the same.
func TestExampleParses(t *testing.T) {
	_, rest, ok := strings.Cut(intro, "```\n")
	require.True(t, ok)
	src, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	m, err := ir.Parse(ops.Table(), "intro.md", src)
	require.NoError(t, err)
	assert.Equal(t, src, m.String())
}

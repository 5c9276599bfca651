"""Decision trees as they are in a file, and the tables that the operator ``packager.tree_ensemble`` takes.

All nodes become ``key <= bound ? left : right`` with bounds that are integers (``packager.graph.tree_ensemble.keys``):
less is one integer less, greater swaps the children, and equality takes two nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from packager.bundle.arrays import Array
from packager.graph.tree_ensemble import TreeAttributes, TreeTables, keys

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(len(MODES))
# A link holds a child and a feature.
LINK_BITS = 31
# The most weights of leaves: larger tables are a mistake, or an attack on memory.
MOST_WEIGHTS = 1 << 28
FIRST = {"sum": 0.0, "min": np.inf, "max": -np.inf}


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees: for each its mode, feature, threshold, children (indices), and whether NaN is true.

    ``roots`` are the first nodes of trees. Leaf ``owner[i]`` adds ``weight[i]`` to target ``target[i]``.
    """

    mode: Array
    feature: Array
    threshold: Array
    yes: Array
    no: Array
    tracks: Array
    roots: Array
    owner: Array
    target: Array
    weight: Array
    members: dict[int, list[float]]


@dataclass(frozen=True)
class _Decisions:
    """Nodes as ``key <= bound ? left : right``; of a leaf only ``is_leaf`` counts."""

    is_leaf: Array
    feature: Array
    bound: Array
    left: Array
    right: Array
    nan_left: Array


def check(forest: Forest, features: int, targets: int) -> None:
    """Raise ValueError unless nodes, features and targets exist, and thresholds are numbers."""
    count, inner = len(forest.mode), forest.mode != LEAF
    if not 1 <= targets <= MOST_WEIGHTS:
        raise ValueError(f"there are {targets} targets")
    for name in ("yes", "no"):
        children = getattr(forest, name)[inner]
        if children.size and not (children.min() >= 0 and children.max() < count):
            raise ValueError("a child is a node that does not exist")
    used = forest.feature[inner]
    if used.size and not (used.min() >= 0 and used.max() < features):
        raise ValueError(f"a node tests feature {used.min() if used.min() < 0 else used.max()} of {features}")
    if np.isnan(forest.threshold[inner & (forest.mode != MEMBER)]).any():
        raise ValueError("a threshold is NaN")
    if forest.target.size and not (forest.target.min() >= 0 and forest.target.max() < targets):
        raise ValueError(f"a leaf has a weight for target {forest.target.max()} of {targets}")
    if not len(forest.roots):
        raise ValueError("there are no trees")


def make_tables(forest: Forest, features: int, targets: int, aggregate: str) -> tuple[TreeTables, TreeAttributes]:
    """Return the tables of a checked forest. Raises ValueError if nodes do not form trees, or there are too many."""
    decisions = _decide(forest)
    splits_nan = bool(decisions.nan_left.any())
    feature_bits = max(int(features * (2 if splits_nan else 1) - 1).bit_length(), 1)
    depths = [_depth(decisions, int(root)) for root in forest.roots]
    order = np.argsort(-np.asarray(depths), kind="stable")  # trees of one depth are descended together
    records, sources, trees, first = [], [], [], 0
    pair = np.full(len(decisions.bound), -1)
    for number in order:
        source = _lay_out(decisions, int(forest.roots[number]), pair)
        if len(source) >> (LINK_BITS - feature_bits):
            raise ValueError(f"a tree has {len(source)} nodes, too many beside {features} features")
        leaf = decisions.is_leaf[source]
        test = decisions.feature[source] + np.where(decisions.nan_left[source], features, 0)
        link = (np.where(leaf, np.arange(len(source)), pair[source]) << feature_bits) | np.where(leaf, 0, test)
        bound = np.where(leaf, np.iinfo(decisions.bound.dtype).max, decisions.bound[source])
        records.append(np.stack([bound, link.astype(bound.dtype)], axis=1))
        trees.append((first, depths[number], 0))
        sources.append(source)
        first += len(source)
        pair[source] = -1
    tables = TreeTables(
        np.concatenate(records).astype(decisions.bound.dtype), np.asarray(trees, np.int32), *([np.zeros(1)] * 2)
    )
    tables, dense = _with_weights(forest, tables, sources, decisions.is_leaf, targets, aggregate)
    return tables, TreeAttributes(targets, feature_bits, splits_nan, dense, aggregate)


def _with_weights(
    forest: Forest, tables: TreeTables, sources: list[Array], is_leaf: Array, targets: int, aggregate: str
) -> tuple[TreeTables, bool]:
    """Fill in the weights; also return whether leaves have a row of them."""
    of_leaf = is_leaf[forest.owner]
    owner, target, weight = (part[of_leaf] for part in (forest.owner, forest.target, forest.weight))
    counts = np.bincount(owner, minlength=len(is_leaf))
    target_of = np.full(len(is_leaf), -1)
    target_of[owner] = target
    per_tree = [np.unique(target_of[source[is_leaf[source]]]) for source in sources]
    everywhere = np.concatenate(sources)
    if targets == 1 or (counts.max(initial=0) <= 1 and all(len(own[own >= 0]) <= 1 for own in per_tree)):
        if aggregate != "sum" and counts.max(initial=0) > 1:
            raise ValueError("a leaf has several weights for one target")
        of_node = np.where(counts, 0.0, FIRST[aggregate]).astype(weight.dtype)
        np.add.at(of_node, owner, weight)
        trees = tables.trees.copy()
        trees[:, 2] = [max(int(own.max(initial=0)), 0) for own in per_tree]
        return replace(tables, trees=trees, leaves=np.zeros(1, np.int32), weights=of_node[everywhere]), False
    row_of = np.cumsum(is_leaf) - 1
    if int(is_leaf.sum()) * targets > MOST_WEIGHTS:
        raise ValueError(f"{int(is_leaf.sum())} leaves with weights for {targets} targets")
    rows = np.full((int(is_leaf.sum()), targets), FIRST[aggregate], weight.dtype)
    places = (row_of[owner], target)
    rows[places] = 0.0
    np.add.at(rows, places, weight)
    leaves = np.where(is_leaf[everywhere], row_of[everywhere], 0).astype(np.int32)
    return replace(tables, leaves=leaves, weights=rows), True


def _decide(forest: Forest) -> _Decisions:
    mode, count = forest.mode, len(forest.mode)
    inner = mode != LEAF
    bound = keys(np.where(inner & (mode != MEMBER), forest.threshold, 0).astype(forest.threshold.dtype))
    equal = bound.copy()
    bound = bound - np.isin(mode, (LT, GTE))
    swapped = np.isin(mode, (GTE, GT))
    left, right = np.where(swapped, forest.no, forest.yes), np.where(swapped, forest.yes, forest.no)
    nan_left = np.where(swapped, ~forest.tracks, forest.tracks) & inner
    made = [_Decisions(~inner, np.where(inner, forest.feature, 0), bound, left, right, nan_left)]
    # x == t is x <= t and not x < t: the second test is a node of its own.
    tests = np.flatnonzero(np.isin(mode, (EQ, NEQ)))
    is_equal = mode[tests] == EQ
    otherwise = np.where(is_equal, forest.no[tests], forest.yes[tests])
    same = np.where(is_equal, forest.yes[tests], forest.no[tests])
    left[tests], right[tests] = count + np.arange(len(tests)), otherwise
    nan_left[tests] &= is_equal
    made.append(_second_tests(forest.feature[tests], equal[tests], otherwise, same))
    count += len(tests)
    for node, values in forest.members.items():
        made.append(_member_tests(forest, node, values, count, made[0]))
        count += len(made[-1].bound)
    return _Decisions(*(np.concatenate([getattr(part, name) for part in made]) for name in _Decisions.__annotations__))


def _second_tests(feature: Array, equal: Array, otherwise: Array, same: Array) -> _Decisions:
    false = np.zeros(len(feature), bool)
    return _Decisions(false, feature, equal - 1, otherwise, same, false)


def _member_tests(forest: Forest, node: int, values: list[float], first: int, nodes: _Decisions) -> _Decisions:
    """Make the node test its first member; return the tests of the others, by size: two for each member."""
    yes, no, tracks = int(forest.yes[node]), int(forest.no[node]), bool(forest.tracks[node])
    bounds = np.unique(keys(np.asarray(values, forest.threshold.dtype)))
    feature, made = int(forest.feature[node]), []
    for number, bound in enumerate(bounds):
        after = no if number == len(bounds) - 1 else first + 2 * number + 1
        made += [(bound, first + 2 * number, after, tracks), (bound - 1, no, yes, False)]
    head, *rest = made
    nodes.bound[node], nodes.left[node], nodes.right[node], nodes.nan_left[node] = head
    bound = np.asarray([row[0] for row in rest], bounds.dtype)
    left, right = (np.asarray([row[place] for row in rest], np.int64) for place in (1, 2))
    nan_left = np.asarray([row[3] for row in rest], np.bool_)
    return _Decisions(np.zeros(len(rest), bool), np.full(len(rest), feature), bound, left, right, nan_left)


def _children(decisions: _Decisions, nodes: Array) -> Array:
    inner = nodes[~decisions.is_leaf[nodes]]
    return np.stack([decisions.left[inner], decisions.right[inner]], axis=1).reshape(-1)


def _depth(decisions: _Decisions, root: int) -> int:
    """Return the levels below a root. Raises ValueError if there is a circle."""
    level, depth = np.asarray([root]), 0
    while (level := np.unique(_children(decisions, level))).size:
        depth += 1
        if depth > len(decisions.bound):
            raise ValueError("nodes form no tree: there is a circle")
    return depth


def _lay_out(decisions: _Decisions, root: int, pair: Array) -> Array:
    """Return the nodes of a tree by their new places, level by level. Sets the place of each one's first child."""
    level, levels, places = np.asarray([root]), [], 1
    while level.size:
        levels.append(level)
        new = np.unique(level[~decisions.is_leaf[level]])
        new = new[pair[new] < 0]  # two nodes may share a child, whose children are stored once
        pair[new] = places + 2 * np.arange(len(new))
        places += 2 * len(new)
        level = _children(decisions, new)
    return np.concatenate(levels)

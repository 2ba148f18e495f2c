"""Three-way merge of trees and of texts."""
